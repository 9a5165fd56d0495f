// SPDX-License-Identifier: Apache-2.0
#include "coordinator/life/gang_failure.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

// A rank whose machine's clock is wrong by more than that tells no time at all.
constexpr double kDetectionSecondsMax = 3600;

std::string Describe(const RankView& view) {
  switch (view.presence) {
    case Presence::kLost:
      return absl::StrCat("worker ", view.worker, " with rank ", view.rank, " was lost");
    case Presence::kMissing:
      return absl::StrCat("worker ", view.worker, " no longer has rank ", view.rank);
    default:
      return absl::StrCat("rank ", view.rank, " on ", view.worker, ": ",
                          view.report.message().empty() ? "failed" : view.report.message());
  }
}

bool IsAlive(const RankView& view) {
  return view.presence == Presence::kReported && view.report.state() != v1::RANK_SUCCEEDED &&
         view.report.state() != v1::RANK_FAILED;
}

bool HasCauseOfItsOwn(const RankView& view) {
  return view.presence == Presence::kReported && view.report.state() == v1::RANK_FAILED &&
         (IsPermanent(view.report.reason()) || view.report.reason() == v1::REASON_OUT_OF_MEMORY);
}

}  // namespace

GangFailure FindFailure(absl::Span<const RankView> ranks, bool missing_is_failure) {
  GangFailure found;
  int found_weight = 0;
  for (const RankView& view : ranks) {
    int weight = 0;
    v1::Reason reason = v1::REASON_RANK_DIED;
    if (view.presence == Presence::kLost) {
      weight = 2;
      reason = v1::REASON_WORKER_LOST;
    } else if (view.presence == Presence::kMissing && missing_is_failure) {
      weight = 1;
    } else if (view.presence == Presence::kReported && view.report.state() == v1::RANK_FAILED) {
      if (view.report.reason() != v1::REASON_NONE) reason = view.report.reason();
      weight = IsPermanent(reason) ? 4 : reason == v1::REASON_OUT_OF_MEMORY ? 3 : 1;
    }
    if (weight <= found_weight) continue;
    found_weight = weight;
    found = {reason, Describe(view), &view};
  }
  return found;
}

double DetectionSeconds(const RankView* lost, int64_t unix_ms) {
  if (lost == nullptr) return 0;
  const int64_t told_ms = lost->report.progress().updated_unix_ms();
  if (lost->presence != Presence::kReported || told_ms == 0) return lost->silent_seconds;
  return std::clamp(static_cast<double>(unix_ms - told_ms) / 1000, 0.0, kDetectionSecondsMax);
}

std::string WhatStartWaitsFor(absl::Span<const RankView> ranks) {
  const auto progress = [](const RankView& view) {
    return view.presence == Presence::kReported ? static_cast<int>(view.report.state()) : 0;
  };
  const auto last = std::min_element(
      ranks.begin(), ranks.end(),
      [&](const RankView& a, const RankView& b) { return progress(a) < progress(b); });
  if (last == ranks.end()) return "";
  const std::string who = absl::StrCat("rank ", last->rank, " on ", last->worker);
  if (last->presence == Presence::kMissing) {
    return absl::StrCat("waits for ", who, ", which its worker has not taken up yet");
  }
  if (last->presence != Presence::kReported) {
    return absl::StrCat("waits for ", who, ", whose worker is silent");
  }
  if (!last->report.message().empty()) return absl::StrCat(who, ": ", last->report.message());
  if (last->report.state() != v1::RANK_STARTED)
    return absl::StrCat("waits for ", who, " to prepare");
  return absl::StrCat("waits for ", who,
                      last->report.pid() == 0 ? ", which fetches its program"
                                              : ", whose process does not answer yet");
}

bool HasLiveRank(absl::Span<const RankView> ranks) {
  return std::any_of(ranks.begin(), ranks.end(), &IsAlive);
}

std::vector<RankView> WithLastWords(std::vector<RankView> found, absl::Span<const RankView> now) {
  for (RankView& view : found) {
    if (!IsAlive(view)) continue;
    const auto last = std::find_if(now.begin(), now.end(), [&view](const RankView& other) {
      return other.rank == view.rank && HasCauseOfItsOwn(other);
    });
    if (last != now.end()) view = *last;
  }
  return found;
}

}  // namespace terrace
