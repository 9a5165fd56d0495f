// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "worker/daemon/run_directory.h"
#include "worker/daemon/supervisor.h"

// How ranks start: fetch the program, start the process, hear of it, prepare. Each step has a
// deadline, what can be tried again is, and the report says what it waits for.
namespace terrace {
namespace {

std::string Seconds(int64_t ms) { return absl::StrCat(ms / 1000.0, " s"); }

}  // namespace

int64_t Supervisor::NowMs() const { return clock_.MonotonicNanos() / 1'000'000; }

void Supervisor::StartOne(const v1::RankConfig& config) {
  const Key key{config.job(), config.epoch(), config.rank()};
  Rank& rank = ranks_[key];
  rank.config = config;
  rank.config.set_run_directory(RunDirectory(options_.state_directory, config));
  rank.config.set_data_address(options_.data_address);
  if (config.spec().train().trace_steps() > 0) {
    rank.config.set_trace_path(TracePath(rank.config.run_directory()));
    rank.config.set_trace_steps(config.spec().train().trace_steps());
  }
  rank.report.set_job(key.job);
  rank.report.set_epoch(key.epoch);
  rank.report.set_rank(key.rank);
  rank.report.set_device(config.device());
  rank.report.set_state(v1::RANK_STARTED);
  rank.step_since_ms = NowMs();
  TryStart(key, rank);
}

void Supervisor::TryStart(const Key& key, Rank& rank) {
  const std::string& sha256 = rank.config.program_sha256();
  const auto program = programs_.Find(sha256);
  if (program.ok()) return Launch(key, rank, *program);
  if (!absl::IsNotFound(program.status())) {
    return Fail(rank, v1::REASON_INTERNAL, std::string(program.status().message()));
  }
  const int64_t now = NowMs();
  rank.next_try_ms = now + options_.starting.ask_again_ms;
  // Once for all ranks that need it.
  int64_t& asked =
      asked_ms_.try_emplace(sha256, now - options_.starting.ask_again_ms).first->second;
  if (now - asked < options_.starting.ask_again_ms) return;
  asked = now;
  v1::WorkerMessage need;
  need.mutable_need_program()->set_sha256(sha256);
  ports_.to_coordinator(need);
}

void Supervisor::ProgramComes(std::string_view sha256) {
  const int64_t now = NowMs();
  if (const auto asked = asked_ms_.find(sha256); asked != asked_ms_.end()) asked->second = now;
  for (auto& [key, rank] : ranks_) {
    if (!IsWaitingFor(rank, sha256)) continue;
    if (!rank.start_failed) rank.step_since_ms = now;
    rank.next_try_ms = std::max(rank.next_try_ms, now + options_.starting.ask_again_ms);
  }
}

void Supervisor::ProgramArrived(std::string_view sha256) {
  asked_ms_.erase(std::string(sha256));
  for (auto& [key, rank] : ranks_) {
    if (IsWaitingFor(rank, sha256)) TryStart(key, rank);
  }
}

void Supervisor::ProgramFailed(std::string_view sha256, const absl::Status& status) {
  asked_ms_.erase(std::string(sha256));
  for (auto& [key, rank] : ranks_) {
    if (!IsWaitingFor(rank, sha256)) continue;
    Postpone(rank, absl::StrCat("its program cannot be kept: ", status.message()));
  }
}

bool Supervisor::IsWaitingFor(const Rank& rank, std::string_view sha256) {
  return rank.process == nullptr && !rank.ended && rank.config.program_sha256() == sha256;
}

void Supervisor::ForgetAsked(const std::string& sha256) {
  const bool is_wanted = std::any_of(ranks_.begin(), ranks_.end(), [&](const auto& entry) {
    return IsWaitingFor(entry.second, sha256);
  });
  if (!is_wanted) asked_ms_.erase(sha256);
}

void Supervisor::Launch(const Key& key, Rank& rank, const std::string& program) {
  rank.config.set_program_path(program);
  absl::Status status = MakeRunDirectory(options_.state_directory, rank.config, files_);
  if (status.ok()) status = files_.ShareFolder(std::filesystem::path(program).parent_path());
  if (status.ok()) status = files_.ShareFile(program);
  if (status.ok()) {
    auto process = WatchedProcess::Start({.binary = options_.rank_binary,
                                          .privileges = options_.privileges,
                                          .environment = options_.rank_environment,
                                          .config = rank.config,
                               .arguments = ArgumentsOf(options_.confine),
                                          .die_with_daemon = options_.die_with_daemon},
                                         HandlersOf(key));
    status = process.status();
    if (status.ok()) rank.process = *std::move(process);
  }
  if (!status.ok()) return Postpone(rank, absl::StrCat("cannot be started: ", status.message()));
  rank.heard_ms = NowMs();
  rank.report.clear_message();
  rank.report.set_pid(rank.process->pid());
  WatchMemory(rank, rank.process->pid());
  WatchProgress(rank, rank.process->pid());
  log::Info("started rank ", key.rank, " of job ", key.job, " epoch ", key.epoch, ", process ",
            rank.process->pid());
}

void Supervisor::Postpone(Rank& rank, const std::string& why) {
  const int64_t now = NowMs();
  if (!std::exchange(rank.start_failed, true)) rank.step_since_ms = now;
  const std::string patience = Seconds(options_.starting.retry_for_ms);
  if (now - rank.step_since_ms >= options_.starting.retry_for_ms) {
    return Fail(rank, v1::REASON_RANK_DIED,
                absl::StrCat(why, "; this was tried again for ", patience));
  }
  rank.next_try_ms = now + options_.starting.retry_ms;
  const std::string message = absl::StrCat(why, "; it is tried again for ", patience);
  if (rank.report.message() == message) return;
  log::Warn("rank ", rank.config.rank(), " of job ", rank.config.job(), ": ", message);
  rank.report.set_message(message);
  ports_.changed();
}

absl::Duration Supervisor::AdvanceStarts() {
  const int64_t now = NowMs();
  int64_t next = now + options_.starting.prepare_ms;
  for (auto& [key, rank] : ranks_) {
    if (rank.ended || !rank.overdue.empty()) continue;
    const int64_t due = rank.process == nullptr ? rank.next_try_ms : Deadline(rank);
    if (now < due) {
      next = std::min(next, due);
    } else if (rank.process != nullptr) {
      rank.overdue = absl::StrCat(rank.report.state() == v1::RANK_STARTED
                                      ? "its process did not answer within "
                                      : "it said nothing while it prepared for ",
                                  Seconds(now - rank.heard_ms), " and was ended");
      rank.process->Kill();
    } else if (!rank.start_failed && now - rank.step_since_ms >= options_.starting.program_ms) {
      Fail(rank, v1::REASON_RANK_DIED,
           absl::StrCat("the coordinator has not sent its program within ",
                        Seconds(options_.starting.program_ms)));
    } else {
      TryStart(key, rank);
      next = std::min(next, std::max(now + 1, rank.next_try_ms));
    }
  }
  return absl::Milliseconds(next - now);
}

int64_t Supervisor::Deadline(const Rank& rank) const {
  const v1::RankState state = rank.report.state();
  if (state == v1::RANK_STARTED) return rank.heard_ms + options_.starting.link_ms;
  const bool prepares = state == v1::RANK_PREPARING || (state == v1::RANK_READY && rank.go);
  return prepares ? rank.heard_ms + options_.starting.prepare_ms : INT64_MAX;
}

}  // namespace terrace
