// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/supervisor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/strings.h"
#include "worker/daemon/abandoned_flights.h"
#include "worker/daemon/run_directory.h"
#include "worker/flight/flight_recorder.h"

namespace terrace {
Supervisor::Supervisor(const Options& options, Ports ports, ProgramCache& programs)
    : options_(options),
      files_(options.privileges.user),
      ports_(std::move(ports)),
      programs_(programs) {}

Supervisor::~Supervisor() = default;

// ---- commands ---------------------------------------------------------------------------------

int64_t Supervisor::NewestEpoch(std::string_view job) const {
  int64_t newest = 0;
  for (const auto& [key, rank] : ranks_) {
    if (key.job == job) newest = std::max(newest, key.epoch);
  }
  return newest;
}

void Supervisor::Start(const v1::StartRanks& start) {
  for (const v1::RankConfig& config : start.ranks()) {
    if (!IsSafeJobId(config.job())) {
      log::Warn("refused to start a rank of a job named \"", config.job(), "\"");
    } else if (config.epoch() < NewestEpoch(config.job())) {
      log::Warn("refused to start job ", config.job(), " epoch ", config.epoch(),
                ": a newer epoch is here");
    } else if (!ranks_.contains({config.job(), config.epoch(), config.rank()})) {
      StartOne(config);
    }
  }
  ports_.changed();
}

void Supervisor::Go(const v1::Go& go) {
  for (auto& [key, rank] : ranks_) {
    if (key.job != go.job() || key.epoch != go.epoch()) continue;
    rank.go = true;
    rank.heard_ms = NowMs();
    SendCommands(rank);
  }
}

void Supervisor::Stop(const v1::StopRanks& stop) {
  std::vector<Key> ended;
  for (auto& [key, rank] : ranks_) {
    if (key.job != stop.job() || key.epoch > stop.epoch()) continue;
    if (stop.checkpoint()) {
      rank.stop_with_checkpoint = true;
      SendCommands(rank);
    } else if (rank.process != nullptr) {
      rank.forget = true;
      rank.process->Kill();
    } else {
      ended.push_back(key);
    }
  }
  for (const Key& key : ended) Forget(key);
}

void Supervisor::Forget(const Key& key) {
  auto found = ranks_.find(key);
  if (found == ranks_.end()) return;
  MarkForgotten(found->second.config.run_directory());
  const std::string program = found->second.config.program_sha256();
  ranks_.erase(found);
  ForgetAsked(program);
  ports_.changed();
}

void Supervisor::SendCommands(Rank& rank) {
  if (rank.process == nullptr) return;
  v1::LinkMessage message;
  if (rank.stop_with_checkpoint || rank.ran_out.has_value()) {
    message.mutable_stop()->set_job(rank.config.job());
    message.mutable_stop()->set_epoch(rank.config.epoch());
    message.mutable_stop()->set_checkpoint(true);
  } else if (rank.go) {
    message.mutable_go()->set_job(rank.config.job());
    message.mutable_go()->set_epoch(rank.config.epoch());
  } else {
    return;
  }
  rank.process->Send(message).IgnoreError();  // sent again when the link is there
}

void Supervisor::Answer(const v1::KvValues& values) {
  auto found = ranks_.find({values.job(), values.epoch(), values.rank()});
  if (found == ranks_.end() || found->second.process == nullptr) return;
  found->second.waits.erase(values.request());
  v1::LinkMessage message;
  *message.mutable_kv_values() = values;
  found->second.process->Send(message).IgnoreError();  // a rank whose link broke asks again
}

void Supervisor::Resend() {
  asked_ms_.clear();
  for (auto& [key, rank] : ranks_) {
    if (rank.ended) continue;
    v1::WorkerMessage message;
    for (const v1::KvSet& set : rank.keys) {
      *message.mutable_kv_set() = set;
      ports_.to_coordinator(message);
    }
    for (const auto& [request, wait] : rank.waits) {
      *message.mutable_kv_wait() = wait;
      ports_.to_coordinator(message);
    }
    if (rank.process == nullptr) {
      if (!rank.start_failed) rank.step_since_ms = NowMs();
      TryStart(key, rank);
    }
  }
}

bool Supervisor::HasLiveRank() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const auto& rank) { return !rank.second.ended; });
}

void Supervisor::KillAll() {
  for (auto& [key, rank] : ranks_) {
    if (rank.process != nullptr) rank.process->Kill();
  }
}

// ---- what ranks do ----------------------------------------------------------------------------

WatchedProcess::Handlers Supervisor::HandlersOf(const Key& key) {
  return {.on_message =
              [this, key](const v1::LinkMessage& message) {
                ports_.post([this, key, message] { Received(key, message); });
              },
          .on_linked = [this, key] { ports_.post([this, key] { Linked(key); }); },
          .on_end =
              [this, key](const std::string& how) {
                ports_.post([this, key, how] { Ended(key, how); });
              }};
}

void Supervisor::Linked(const Key& key) {
  auto found = ranks_.find(key);
  if (found == ranks_.end()) return;
  found->second.heard_ms = NowMs();
  SendCommands(found->second);
}

void Supervisor::Ended(const Key& key, const std::string& how) {
  auto found = ranks_.find(key);
  if (found == ranks_.end()) return;
  Rank& rank = found->second;
  rank.process.reset();
  rank.progress.reset();
  rank.report.clear_place();
  rank.ended = true;
  log::Info("rank ", key.rank, " of job ", key.job, " epoch ", key.epoch, " has ended",
            how.empty() ? "" : ": ", how);
  SettleFlight(rank.config.run_directory()).IgnoreError();  // there may be none
  PassOnUntoldSteps(rank);
  if (rank.forget) return Forget(key);
  if (!rank.overdue.empty()) return Fail(rank, v1::REASON_RANK_DIED, rank.overdue);
  v1::RankReport last = rank.claimed;
  if (!IsFinal(last.state())) {
    if (const auto written = ReadExitReport(rank.config.run_directory()); written.has_value()) {
      last = *written;
    }
  }
  if (IsFinal(last.state())) return ReportEnd(rank, last, how);
  const std::string line = LastLogLine(rank.config.run_directory());
  rank.report.set_reason(v1::REASON_RANK_DIED);  // Judge may know better
  const std::string verdict = Judge(rank, how);
  Fail(rank, rank.report.reason(),
       absl::StrCat(verdict, line.empty() ? "" : "; its log ends with: ", line));
}

// As it was told by the rank itself.
void Supervisor::ReportEnd(Rank& rank, const v1::RankReport& last, const std::string& how) {
  rank.report.set_state(last.state());
  rank.report.set_reason(last.reason());
  rank.report.set_message(last.message());
  rank.report.set_exit_code(last.exit_code());
  rank.report.set_stopped_early(last.stopped_early());
  if (last.has_progress()) *rank.report.mutable_progress() = last.progress();
  if (last.state() == v1::RANK_FAILED) Judge(rank, how);
  const bool asked = last.stopped_early() && !rank.stop_with_checkpoint;
  if (last.state() == v1::RANK_SUCCEEDED && asked && rank.ran_out.has_value()) {
    rank.report.set_state(v1::RANK_FAILED);
    rank.report.set_reason(rank.ran_out->reason());
    rank.report.set_message(rank.ran_out->message());
    *rank.report.mutable_memory() = rank.ran_out->memory();
  }
  rank.memory.reset();
  ports_.changed();
}

void Supervisor::Fail(Rank& rank, v1::Reason reason, const std::string& message) {
  rank.ended = true;
  rank.report.set_state(v1::RANK_FAILED);
  rank.report.set_reason(reason);
  rank.report.set_message(message);
  ForgetAsked(rank.config.program_sha256());
  ports_.changed();
}

// ---- adoption ---------------------------------------------------------------------------------

void Supervisor::Adopt() {
  for (const v1::RankConfig& config : ScanRuns(options_.state_directory)) AdoptOne(config);
  const int removed = RemoveAbandonedFlights("/dev/shm", files_.owner(), kAbandonedFlightSeconds);
  if (removed > 0) log::Info("removed ", removed, " flight recorders of ranks long dead");
}

void Supervisor::AdoptOne(const v1::RankConfig& config) {
  const Key key{config.job(), config.epoch(), config.rank()};
  Rank& rank = ranks_[key];
  rank.config = config;
  rank.report.set_job(key.job);
  rank.report.set_epoch(key.epoch);
  rank.report.set_rank(key.rank);
  rank.report.set_device(config.device());
  rank.report.set_state(v1::RANK_STARTED);
  rank.ran_out = ReadRanOut(config.run_directory());
  const std::optional<pid_t> pid = FindProcess(config.run_directory());
  if (pid.has_value()) {
    auto process = WatchedProcess::Adopt(*pid, config.run_directory(), HandlersOf(key));
    if (process.ok()) {
      rank.process = *std::move(process);
      rank.heard_ms = NowMs();
      rank.report.set_pid(*pid);
      WatchMemory(rank, *pid);
      WatchProgress(rank, *pid);
      log::Info("found rank ", key.rank, " of job ", key.job, " epoch ", key.epoch,
                " alive, process ", *pid);
      return;
    }
  }
  Ended(key, "");
}

bool Supervisor::IsLive(std::string_view job, uint32_t rank) const {
  return std::any_of(ranks_.begin(), ranks_.end(), [&](const auto& entry) {
    return entry.first.job == job && entry.first.rank == rank && !entry.second.ended;
  });
}

}  // namespace terrace
