// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack_fits.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>
#include <vector>

#include "coordinator/compiler/occupancy.h"

namespace terrace {
namespace {

// How many lengths of life may divide long from short: the widest gaps, and two parts of all.
constexpr size_t kLongLifeGaps = 4;
// What lives for so many eighths of the time goes before everything else.
constexpr int kWholeEighths = 7;
// The share of the placements, one part in so many, that is left for improving ...
constexpr int64_t kImprovePart = 3;
// ... so many of the best, each so many times.
constexpr size_t kImproved = 8;
constexpr int kImproveRounds = 12;

enum class LongOrder { kBirth, kClassBirth, kDeath };
enum class ShortOrder { kSize, kArea, kClassDeath };

struct Strategy {
  int long_life = 0;
  LongOrder long_order = LongOrder::kBirth;
  ShortOrder short_order = ShortOrder::kSize;
  HoleChoice long_hole = HoleChoice::kLowest;
  HoleChoice short_hole = HoleChoice::kLowest;
};

struct Attempt {
  std::vector<int> order;
  std::vector<HoleChoice> holes;  // by item
  PackPlacement placement;
};

using Key = std::array<int64_t, 4>;

int64_t Class(int64_t value) { return std::bit_width(static_cast<uint64_t>(value)); }

// The lives that are longest in proportion to the next shorter one, of the longer nine tenths; then
// the medians of all and of the longer half.
std::vector<int> LongLives(const std::vector<PackItem>& items) {
  std::vector<int> lives;
  lives.reserve(items.size());
  for (const PackItem& item : items) lives.push_back(item.life());
  std::sort(lives.begin(), lives.end());
  struct Gap {
    int64_t milli = 0;
    int life = 0;
  };
  std::vector<Gap> gaps;
  for (size_t k = lives.size() / 10 + 1; k < lives.size(); ++k) {
    if (lives[k] > lives[k - 1] && lives[k - 1] >= 3) {
      gaps.push_back({int64_t{1000} * lives[k] / lives[k - 1], lives[k]});
    }
  }
  std::sort(gaps.begin(), gaps.end(), [](const Gap& a, const Gap& b) {
    return a.milli != b.milli ? a.milli > b.milli : a.life > b.life;
  });
  std::vector<int> result;
  for (const Gap& gap : gaps) {
    if (result.size() < kLongLifeGaps) result.push_back(gap.life);
  }
  result.push_back(lives[lives.size() / 2]);
  result.push_back(lives[lives.size() * 3 / 4]);
  return result;
}

// The likeliest first: the budget may not last.
std::vector<Strategy> Strategies(const std::vector<PackItem>& items) {
  std::vector<Strategy> strategies;
  const std::vector<int> long_lives = LongLives(items);
  for (const HoleChoice long_hole : {HoleChoice::kLowest, HoleChoice::kTightest}) {
    for (const HoleChoice short_hole :
         {HoleChoice::kLowest, HoleChoice::kTightest, HoleChoice::kHighest}) {
      for (const LongOrder long_order :
           {LongOrder::kBirth, LongOrder::kDeath, LongOrder::kClassBirth}) {
        for (const ShortOrder short_order :
             {ShortOrder::kClassDeath, ShortOrder::kSize, ShortOrder::kArea}) {
          for (const int long_life : long_lives) {
            strategies.push_back({long_life, long_order, short_order, long_hole, short_hole});
          }
        }
      }
    }
  }
  return strategies;
}

Key LongKey(const PackItem& item, LongOrder order) {
  switch (order) {
    case LongOrder::kBirth:
      return {1, item.begin, -item.bytes, 0};
    case LongOrder::kClassBirth:
      return {1, -Class(item.life()), item.begin, -item.bytes};
    case LongOrder::kDeath:
      return {1, -item.end, -item.bytes, 0};
  }
  return {};
}

Key ShortKey(const PackItem& item, ShortOrder order) {
  switch (order) {
    case ShortOrder::kSize:
      return {2, -item.bytes, item.begin, -item.end};
    case ShortOrder::kArea:
      return {2, -(item.bytes / kPackAlignment) * item.life(), item.begin, 0};
    case ShortOrder::kClassDeath:
      return {2, -Class(item.bytes), -item.end, -item.bytes};
  }
  return {};
}

Attempt Start(const PackProblem& problem, const Strategy& strategy) {
  Attempt attempt;
  std::vector<std::pair<Key, int>> keyed;
  keyed.reserve(problem.items.size());
  for (int i = 0; i < static_cast<int>(problem.items.size()); ++i) {
    const PackItem& item = problem.items[i];
    const bool whole = int64_t{8} * item.life() >= int64_t{kWholeEighths} * problem.slots;
    const bool is_long = item.life() >= strategy.long_life;
    HoleChoice hole = HoleChoice::kLowest;
    if (whole) {
      keyed.push_back({{0, -item.life(), -item.bytes, 0}, i});
    } else if (is_long) {
      keyed.push_back({LongKey(item, strategy.long_order), i});
      hole = strategy.long_hole;
    } else {
      keyed.push_back({ShortKey(item, strategy.short_order), i});
      hole = strategy.short_hole;
    }
    attempt.holes.push_back(hole);
  }
  std::sort(keyed.begin(), keyed.end());
  attempt.order.reserve(keyed.size());
  for (const auto& [key, item] : keyed) attempt.order.push_back(item);
  return attempt;
}

void Place(const PackProblem& problem, int64_t ceiling, Attempt* attempt) {
  Occupancy occupancy(problem.slots);
  PackPlacement& placement = attempt->placement;
  placement.offsets.resize(problem.items.size());
  placement.arena_bytes = 0;
  for (const int i : attempt->order) {
    const PackItem& item = problem.items[i];
    SlotRange whole;
    const absl::Span<const SlotRange> lives = item.LivesOr(&whole);
    const int64_t offset = occupancy.Find(lives, item.bytes, attempt->holes[i], ceiling);
    for (const SlotRange& life : lives) occupancy.Take(life.begin, life.end, offset, item.bytes);
    placement.offsets[i] = offset;
    placement.arena_bytes = std::max(placement.arena_bytes, offset + item.bytes);
  }
}

// What ended up above the ceiling goes first next time. This often goes down only after it went up.
void LiftFirst(const PackProblem& problem, int64_t ceiling, Attempt* attempt) {
  std::stable_partition(attempt->order.begin(), attempt->order.end(), [&](int i) {
    return attempt->placement.offsets[i] + problem.items[i].bytes > ceiling;
  });
}

bool LowerArena(const Attempt& a, const Attempt& b) {
  return a.placement.arena_bytes < b.placement.arena_bytes;
}

// Of the attempts with one arena only the first: others mostly lie the same.
void KeepBest(std::vector<Attempt>* attempts) {
  std::stable_sort(attempts->begin(), attempts->end(), LowerArena);
  attempts->erase(std::unique(attempts->begin(), attempts->end(),
                              [](const Attempt& a, const Attempt& b) {
                                return a.placement.arena_bytes == b.placement.arena_bytes;
                              }),
                  attempts->end());
  if (attempts->size() > kImproved) attempts->resize(kImproved);
}

}  // namespace

PackPlacement PackBelow(const PackProblem& problem, int64_t ceiling_bytes, int64_t placements) {
  const int64_t items = static_cast<int64_t>(problem.items.size());
  int64_t left = placements - placements / kImprovePart;
  PackPlacement best;
  const auto offer = [&](const PackPlacement& placement) {
    if (best.offsets.empty() || placement.arena_bytes < best.arena_bytes) best = placement;
    return best.arena_bytes <= ceiling_bytes;
  };
  std::vector<Attempt> attempts;
  for (const Strategy& strategy : Strategies(problem.items)) {
    if ((left -= items) < 0) break;
    attempts.push_back(Start(problem, strategy));
    Place(problem, ceiling_bytes, &attempts.back());
    if (offer(attempts.back().placement)) return best;
    if (attempts.size() > 2 * kImproved) KeepBest(&attempts);
  }
  KeepBest(&attempts);
  left = placements / kImprovePart;
  for (Attempt& attempt : attempts) {
    for (int round = 0; round < kImproveRounds; ++round) {
      if ((left -= items) < 0) return best;
      LiftFirst(problem, ceiling_bytes, &attempt);
      Place(problem, ceiling_bytes, &attempt);
      if (offer(attempt.placement)) return best;
    }
  }
  return best;
}

}  // namespace terrace
