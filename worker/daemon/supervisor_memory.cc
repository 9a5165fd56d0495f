// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <ctime>
#include <utility>

#include "base/log.h"
#include "base/paths/new_file.h"
#include "worker/daemon/memory/kernel_log.h"
#include "worker/daemon/memory/memory_limit.h"
#include "worker/daemon/memory/memory_verdict.h"
#include "worker/daemon/run_directory.h"
#include "worker/daemon/supervisor.h"

// What ranks hold, and what is told of it.
namespace terrace {
namespace {

int64_t MicrosecondsSinceBoot() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
}

}  // namespace

void Supervisor::WatchMemory(Rank& rank, int64_t pid) {
  rank.memory = std::make_unique<MemoryWatch>(&rank.config, pid, options_.capacity,
                                              &watched_programs_, &clock_);
}

absl::Duration Supervisor::SampleMemory() {
  const int64_t now_ms = clock_.UnixMillis();
  absl::Duration wait = absl::InfiniteDuration();
  for (auto& [key, rank] : ranks_) {
    if (rank.ended || rank.memory == nullptr) continue;
    wait = std::min(wait, rank.memory->Sample());
    if (rank.report.state() != v1::RANK_RUNNING) continue;
    if (now_ms - rank.memory_told_ms < kMemoryReportMs) continue;
    rank.memory_told_ms = now_ms;
    *rank.report.mutable_memory() = rank.memory->Report(rank.metrics);
    CheckLimits(rank);
  }
  return wait;
}

// Without checkpoints there is no boundary to go on from: such a rank is left to its luck.
void Supervisor::CheckLimits(Rank& rank) {
  if (rank.ran_out.has_value() || rank.config.spec().checkpoint().directory().empty()) return;
  const v1::RankMemory& memory = rank.report.memory();
  // To ask for the limits is most of the cost.
  const std::string exceeded =
      HoldsMoreThanPlanned(memory)
          ? ExceededLimit(memory, rank.config, ReadHardLimits(rank.report.pid()))
          : "";
  rank.over_limit = exceeded.empty() ? 0 : rank.over_limit + 1;
  if (rank.over_limit < kOverLimitReports) return;
  v1::RankReport& report = rank.ran_out.emplace();
  report.set_reason(v1::REASON_OUT_OF_MEMORY);
  report.set_message(exceeded + "; ended after a checkpoint");
  *report.mutable_memory() = memory;
  log::Warn("rank ", rank.config.rank(), " of job ", rank.config.job(),
            " is asked to end: ", exceeded);
  // For the next daemon; without it that one would take the end for another's wish.
  const std::string path = RanOutPath(rank.config.run_directory());
  if (const absl::Status status = ReplaceFile(path, report.SerializeAsString(), 0600);
      !status.ok()) {
    log::Warn(status.message());
  }
  SendCommands(rank);
}

v1::Heartbeat Supervisor::Reports() {
  v1::Heartbeat heartbeat;
  for (auto& [key, rank] : ranks_) {
    *heartbeat.add_ranks() = rank.report;
    if (!rank.ended) rank.report.clear_memory();  // at its end it is why it ended
  }
  return heartbeat;
}

std::vector<Supervisor::Metrics> Supervisor::LiveMetrics() const {
  std::vector<Metrics> all;
  for (const auto& [key, rank] : ranks_) {
    if (rank.ended) continue;
    const auto& nvme = rank.config.spec().resources().nvme().paths();
    all.push_back({key.job,
                   key.rank,
                   rank.metrics,
                   rank.memory == nullptr ? v1::RankMemory() : rank.memory->Report(rank.metrics),
                   rank.report.place(),
                   rank.config.spec().train().precision(),
                   rank.memory == nullptr ? std::vector<HotLayer>() : rank.memory->HotLayers(),
                   {nvme.begin(), nvme.end()}});
  }
  return all;
}

std::string Supervisor::Judge(Rank& rank, const std::string& how) {
  if (rank.memory == nullptr) WatchMemory(rank, 0);
  MemoryFacts facts = rank.memory->Facts(rank.metrics, how);
  facts.oom_kill_is_logged = how.find("signal 9") != std::string::npos &&
                             OomKillIsLogged(rank.report.pid(), MicrosecondsSinceBoot());
  if (rank.report.reason() == v1::REASON_RANK_DIED &&
      DiedOfMemory(facts, LastLogLine(rank.config.run_directory()))) {
    rank.report.set_reason(v1::REASON_OUT_OF_MEMORY);
  }
  rank.report.clear_memory();
  if (rank.report.reason() == v1::REASON_OUT_OF_MEMORY)
    *rank.report.mutable_memory() = facts.memory;
  const std::string path = VerdictPath(rank.config.run_directory());
  const absl::Status written = ReplaceFile(path, VerdictPage(facts), 0644);
  if (written.ok()) {
    log::Info("what rank ", rank.config.rank(), " of job ", rank.config.job(), " held: ", path);
  } else {
    log::Warn(written.message());
  }
  rank.memory.reset();  // and with it the program
  return ShortVerdict(facts);
}

}  // namespace terrace
