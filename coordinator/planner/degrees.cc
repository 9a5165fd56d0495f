// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/degrees.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

constexpr uint64_t kDevicesPerNodeMax = 64;  // of the spec's key

// That a micro-batch does not part.
int64_t SequencesOfASample(const v1::TrainSpec& train) { return train.has_preference() ? 2 : 1; }

// "dp 2 x tp 4".
std::string InWords(const v1::LayoutSpec& pinned) {
  const std::pair<const char*, uint32_t> degrees[] = {
      {"dp ", pinned.dp()}, {"tp ", pinned.tp()}, {"pp ", pinned.pp()}, {"cp ", pinned.cp()}};
  std::vector<std::string> words;
  for (const auto& [name, degree] : degrees) {
    if (degree > 0) words.push_back(absl::StrCat(name, degree));
  }
  return absl::StrJoin(words, " x ");
}

uint64_t PinnedRanks(const v1::LayoutSpec& pinned) {
  uint64_t ranks = 1;
  for (const uint64_t degree : {pinned.dp(), pinned.tp(), pinned.pp(), pinned.cp()}) {
    ranks *= std::max<uint64_t>(1, degree);
  }
  return ranks;
}

// What to write under resources for exactly so many ranks: one number where one is enough.
std::string ResourcesFor(uint64_t ranks, const Budget& budget) {
  if (ranks % budget.nodes == 0 && ranks / budget.nodes <= kDevicesPerNodeMax) {
    return absl::StrCat("resources.devices_per_node ", ranks / budget.nodes);
  }
  const uint64_t now = std::max<uint64_t>(1, budget.ranks / budget.nodes);
  if (ranks % now == 0) return absl::StrCat("resources.nodes ", ranks / now);
  uint64_t devices = std::min<uint64_t>(ranks, kDevicesPerNodeMax);
  while (ranks % devices != 0) --devices;
  return absl::StrCat("resources.nodes ", ranks / devices, " and resources.devices_per_node ",
                      devices);
}

// `must` completes "must ...".
absl::Status Mismatch(const v1::LayoutSpec& pinned, const Budget& budget, const std::string& must,
                      const std::string& way_out) {
  const uint32_t devices = budget.ranks / budget.nodes;
  return absl::InvalidArgumentError(absl::StrCat(
      "layout: got ", InWords(pinned), " = ", PinnedRanks(pinned), " ranks, must ", must, " ",
      budget.ranks, " that resources give (", budget.nodes, budget.nodes == 1 ? " node" : " nodes",
      " x ", devices, devices == 1 ? " device" : " devices", "); try ", way_out));
}

absl::Status CheckRanks(const v1::LayoutSpec& pinned, const Budget& budget) {
  const uint64_t ranks = PinnedRanks(pinned);
  const bool all_pinned = pinned.dp() > 0 && pinned.tp() > 0 && pinned.pp() > 0 && pinned.cp() > 0;
  const std::string resources = ResourcesFor(ranks, budget);
  if (ranks > budget.ranks) {
    return Mismatch(pinned, budget, "be at most the",
                    absl::StrCat(resources, ", or smaller degrees"));
  }
  if (all_pinned && ranks != budget.ranks) {
    return Mismatch(pinned, budget, "be the",
                    absl::StrCat(resources, ", or leave layout.dp out to use all devices"));
  }
  if (budget.ranks % ranks != 0) return Mismatch(pinned, budget, "divide the", resources);
  return absl::OkStatus();
}

std::vector<int64_t> Choices(uint32_t pinned, int64_t number) {
  return pinned > 0 ? std::vector<int64_t>{pinned} : Divisors(number);
}

std::vector<Degrees> AllDegrees(const v1::LayoutSpec& pinned, const Budget& budget) {
  const int64_t ranks = budget.ranks;
  std::vector<Degrees> all;
  for (const int64_t tp : Choices(pinned.tp(), ranks / budget.nodes)) {
    if (ranks % tp != 0) continue;
    for (const int64_t pp : Choices(pinned.pp(), ranks / tp)) {
      if (ranks % (tp * pp) != 0) continue;
      for (const int64_t cp : Choices(pinned.cp(), ranks / tp / pp)) {
        if (ranks % (tp * pp * cp) != 0) continue;
        const int64_t dp = ranks / (tp * pp * cp);
        if (pinned.dp() == 0 || pinned.dp() == dp) all.push_back({dp, tp, pp, cp});
      }
    }
  }
  return all;
}

}  // namespace

std::vector<int64_t> Divisors(int64_t number) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d * d <= number; ++d) {
    if (number % d != 0) continue;
    divisors.push_back(d);
    if (d != number / d) divisors.push_back(number / d);
  }
  std::sort(divisors.begin(), divisors.end());
  return divisors;
}

absl::StatusOr<std::vector<Degrees>> DegreesFor(const v1::LayoutSpec& pinned, const Budget& budget,
                                                Search search) {
  RETURN_IF_ERROR(CheckRanks(pinned, budget));
  const auto degree = [](uint32_t given) { return int64_t{std::max<uint32_t>(1, given)}; };
  const Degrees plain = {
      .dp = budget.ranks / (degree(pinned.tp()) * degree(pinned.pp()) * degree(pinned.cp())),
      .tp = degree(pinned.tp()),
      .pp = degree(pinned.pp()),
      .cp = degree(pinned.cp())};
  const bool works = pinned.dp() == 0 || pinned.dp() == plain.dp;
  if (search == Search::kPlain && works) return std::vector<Degrees>{plain};
  std::vector<Degrees> all = AllDegrees(pinned, budget);
  if (!all.empty()) return all;
  return Mismatch(
      pinned, budget, "leave a number of ranks that fits into nodes, of the",
      absl::StrCat("another layout.dp, or ", ResourcesFor(PinnedRanks(pinned), budget)));
}

absl::StatusOr<int64_t> RankBatch(const v1::TrainSpec& train, int64_t dp) {
  const int64_t global_batch = train.global_batch(), least = dp * SequencesOfASample(train);
  if (global_batch % least == 0 && global_batch >= least) return global_batch / dp;
  const int64_t below = global_batch / least * least;
  const std::string nearest =
      below > 0 ? absl::StrCat(below, " or ", below + least) : absl::StrCat(least);
  return absl::InvalidArgumentError(
      absl::StrCat("train.global_batch: got ", global_batch, ", must be a multiple of ",
                   least == dp ? "the " : "the two sequences of a pair on each of the ", dp,
                   " data-parallel ranks; try ", nearest));
}

absl::StatusOr<std::vector<int64_t>> MicroBatches(const v1::LayoutSpec& pinned,
                                                  const v1::TrainSpec& train, int64_t rank_batch) {
  std::vector<int64_t> divisors = Divisors(rank_batch);
  std::erase_if(divisors, [&](int64_t d) { return d % SequencesOfASample(train) != 0; });
  if (pinned.micro_batch() == 0) return divisors;
  if (std::find(divisors.begin(), divisors.end(), pinned.micro_batch()) != divisors.end())
    return std::vector<int64_t>{pinned.micro_batch()};
  return absl::InvalidArgumentError(absl::StrCat(
      "layout.micro_batch: got ", pinned.micro_batch(), ", must divide the ", rank_batch,
      " sequences a rank trains on in a step; try one of ", absl::StrJoin(divisors, ", ")));
}

}  // namespace terrace
