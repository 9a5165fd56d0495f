// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "worker/daemon/memory_verdict.h"
#include "worker/daemon/run_directory.h"
#include "worker/daemon/supervisor.h"

// What ranks hold, and what is told of it.
namespace terrace {

void Supervisor::WatchMemory(Rank& rank, int64_t pid) {
  rank.memory = std::make_unique<MemoryWatch>(&rank.config, pid, options_.capacity,
                                              &watched_programs_, &clock_);
}

void Supervisor::SampleMemory() {
  const int64_t now_ms = clock_.UnixMillis();
  for (auto& [key, rank] : ranks_) {
    if (rank.ended || rank.memory == nullptr) continue;
    rank.memory->Sample();
    if (rank.report.state() != v1::RANK_RUNNING) continue;
    if (now_ms - rank.memory_told_ms < kMemoryReportMs) continue;
    rank.memory_told_ms = now_ms;
    *rank.report.mutable_memory() = rank.memory->Report(rank.metrics);
  }
}

v1::Heartbeat Supervisor::Reports() {
  v1::Heartbeat heartbeat;
  for (auto& [key, rank] : ranks_) {
    *heartbeat.add_ranks() = rank.report;
    rank.report.clear_memory();
  }
  return heartbeat;
}

std::vector<Supervisor::Metrics> Supervisor::LiveMetrics() const {
  std::vector<Metrics> all;
  for (const auto& [key, rank] : ranks_) {
    if (rank.ended) continue;
    all.push_back({key.job, key.rank, rank.metrics,
                   rank.memory == nullptr ? v1::RankMemory() : rank.memory->Report(rank.metrics),
                   rank.config.spec().train().precision()});
  }
  return all;
}

std::string Supervisor::Judge(Rank& rank, const std::string& how) {
  if (rank.memory == nullptr) WatchMemory(rank, 0);
  const MemoryFacts facts = rank.memory->Facts(rank.metrics, how);
  const std::string path = VerdictPath(rank.config.run_directory());
  const absl::Status written = WriteSyncedFile(path, VerdictPage(facts));
  if (written.ok()) {
    log::Info("what rank ", rank.config.rank(), " of job ", rank.config.job(), " held: ", path);
  } else {
    log::Warn(written.message());
  }
  rank.memory.reset();  // and with it the program
  return ShortVerdict(facts);
}

}  // namespace terrace
