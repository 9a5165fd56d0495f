// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "base/log.h"
#include "coordinator/jobs/reconciler.h"
#include "coordinator/layout/rules.h"
#include "coordinator/life/hang.h"
#include "proto/program/grid.h"

// Ranks that hang, and slow ones.
namespace terrace {

std::optional<v1::Hang> Reconciler::HangNow(const Entry& entry, const std::vector<RankView>& ranks,
                                            bool* restart) const {
  const v1::Job& job = entry.job;
  if (!HoldsDevices(job.state())) return std::nullopt;
  const bool all_reported = std::all_of(ranks.begin(), ranks.end(), [](const RankView& view) {
    return view.presence == Presence::kReported;
  });
  if (!all_reported) {  // nothing is known that could change it
    return job.has_hang() ? std::optional<v1::Hang>(job.hang()) : std::nullopt;
  }
  const bool has_stepped = entry.training_epoch == job.epoch() || job.has_hang();
  const double step_seconds =
      std::max(entry.longest_step_seconds, job.plan().time().step_seconds());
  const std::optional<FoundHang> found =
      FindHang(ranks, StandingMs(step_seconds, has_stepped), clock_.UnixMillis());
  if (!found.has_value()) return std::nullopt;
  const v1::WatchdogSpec& watchdog = job.spec().watchdog();
  *restart =
      watchdog.on_hang() == "restart" && found->standing_ms >= watchdog.timeout_seconds() * 1000;
  return found->hang;
}

void Reconciler::NoteHang(Entry& entry) {
  const v1::Job& job = entry.job;
  if (!std::exchange(entry.hang_dumped, job.has_hang()) && job.has_hang()) {
    ++stats_.hangs[HangLabel(job.hang())];
    v1::CoordinatorMessage message;
    v1::DumpRanks& dump = *message.mutable_dump();
    dump.set_job(job.id());
    dump.set_epoch(job.epoch());
    dump.set_why(job.hang().message());
    std::set<std::string> workers;
    for (const v1::Placement::Rank& placed : job.placement().ranks())
      workers.insert(placed.worker());
    for (const std::string& worker : workers) ports_.Send(worker, message);
  }
}

void Reconciler::TellSlowRanks(Entry& entry, const std::vector<RankView>& ranks) {
  const int64_t now = clock_.MonotonicNanos();
  if (ranks.size() < 2 || now - entry.slow_looked_ns < timing_.slow_look_ns) return;
  entry.slow_looked_ns = now;
  v1::Job& job = entry.job;
  const v1::Grid grid = GridOf(job.plan().layout());
  std::vector<uint32_t> stages;
  for (const RankView& view : ranks) stages.push_back(CoordinatesOf(grid, view.rank).stage);
  std::map<uint32_t, int64_t> since;
  const auto known = [&job](uint32_t rank) {
    return std::find_if(job.slow_ranks().begin(), job.slow_ranks().end(),
                        [rank](const v1::SlowRank& one) { return one.rank() == rank; });
  };
  const auto tell = [this, &entry](const v1::SlowRank& slow, bool over) {
    v1::JobEvent event;
    event.set_job(entry.job.id());
    event.set_epoch(entry.job.epoch());
    event.set_unix_ms(clock_.UnixMillis());
    *event.mutable_slow()->mutable_rank() = slow;
    event.mutable_slow()->set_over(over);
    event.mutable_slow()->set_text(over ? SlowIsOverText(slow) : SlowText(slow));
    log::Warn("job ", entry.job.id(), ": ", event.slow().text());
    StoreEvent(event);
  };
  std::vector<v1::SlowRank> slow;
  for (v1::SlowRank& one : FindSlow(ranks, stages, clock_.UnixMillis())) {
    const auto before = entry.slow_since_ns.find(one.rank());
    since[one.rank()] = before == entry.slow_since_ns.end() ? now : before->second;
    if (now - since[one.rank()] < timing_.slow_told_ns) continue;
    if (const auto told = known(one.rank()); told != job.slow_ranks().end()) {
      one.set_since_unix_ms(told->since_unix_ms());
    } else {
      tell(one, /*over=*/false);
      ++stats_.slow_ranks;
    }
    slow.push_back(std::move(one));
  }
  entry.slow_since_ns = std::move(since);
  for (const v1::SlowRank& told : job.slow_ranks()) {
    const bool still = entry.slow_since_ns.contains(told.rank());
    if (!still) tell(told, /*over=*/true);
  }
  if (slow.empty() && job.slow_ranks().empty()) return;
  job.mutable_slow_ranks()->Assign(slow.begin(), slow.end());
  NoteUnwritten(entry);
}

}  // namespace terrace
