// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack_search.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <utility>

namespace terrace {
namespace {

// What `lowest` says of a placed item: it no longer counts in any minimum.
constexpr int64_t kPlaced = std::numeric_limits<int64_t>::max() / 2;

// The first round tries each order for so long; starts after it get Luby's share of the lower one.
constexpr int64_t kFirstRoundSteps = 64 << 20;
constexpr int64_t kLubySteps = 8 << 20;

// The orders of the starts, largest first. Tall: the most bytes still to place in a slot of its
// life.
enum class StartOrder { kTallLifeArea, kTallMeetsSize, kTallAreaLife, kLifeAreaTall };
constexpr StartOrder kStartOrders[] = {StartOrder::kTallLifeArea, StartOrder::kTallMeetsSize,
                                       StartOrder::kTallAreaLife, StartOrder::kLifeAreaTall};
constexpr int kStartOrderCount = std::size(kStartOrders);

// 1 1 2 1 1 2 4 1 1 2 ...: within a logarithm of the best lengths, whatever they are (Luby,
// Sinclair and Zuckerman 1993). `k` counts from 1.
int64_t Luby(int64_t k) {
  int64_t power = 1;
  while (2 * power <= k + 1) power *= 2;
  return k + 1 == power ? power / 2 : Luby(k - power + 1);
}

int64_t StartSteps(int start) {
  if (start < kStartOrderCount) return kFirstRoundSteps;
  return kLubySteps * Luby(start - kStartOrderCount + 1);
}

uint64_t Mix(uint64_t x) {  // splitmix64
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace

PackSearch::PackSearch(const PackProblem& problem)
    : problem_(problem), meets_(problem.items.size()), alive_(problem.slots) {
  const int items = static_cast<int>(problem.items.size());
  std::vector<int> by_birth(items);
  std::iota(by_birth.begin(), by_birth.end(), 0);
  std::stable_sort(by_birth.begin(), by_birth.end(),
                   [&](int a, int b) { return problem.items[a].begin < problem.items[b].begin; });
  for (int k = 0; k < items; ++k) {
    const int i = by_birth[k];
    const PackItem& item = problem.items[i];
    for (int s = item.begin; s < item.end; ++s) alive_[s].push_back(i);
    for (int l = k + 1; l < items && problem.items[by_birth[l]].begin < item.end; ++l) {
      meets_[i].push_back(by_birth[l]);
      meets_[by_birth[l]].push_back(i);
    }
  }
}

FitVerdict PackSearch::Fit(int64_t capacity_bytes, int64_t* steps, PackPlacement* placement) {
  capacity_ = capacity_bytes;
  FitVerdict verdict = FitVerdict::kGaveUp;
  for (int start = 0; verdict == FitVerdict::kGaveUp && *steps > 0; ++start) {
    const int64_t granted = std::min(*steps, StartSteps(start));
    verdict = Start(start, granted);
    *steps -= granted - steps_left_;
  }
  if (verdict != FitVerdict::kFits) return verdict;
  placement->offsets = offsets_;
  placement->arena_bytes = 0;
  for (size_t i = 0; i < offsets_.size(); ++i) {
    placement->arena_bytes =
        std::max(placement->arena_bytes, offsets_[i] + problem_.items[i].bytes);
  }
  return verdict;
}

void PackSearch::Reset() {
  lowest_.assign(problem_.items.size(), 0);
  offsets_.assign(problem_.items.size(), 0);
  floor_.assign(problem_.slots, 0);
  remaining_.assign(problem_.slots, 0);
  crossing_.assign(problem_.slots, 0);
  for (const PackItem& item : problem_.items) {
    for (int s = item.begin; s < item.end; ++s) {
      remaining_[s] += item.bytes;
      if (s + 1 < item.end) ++crossing_[s];
    }
  }
  changes_.clear();
  depth_ = 0;
}

FitVerdict PackSearch::Start(int start, int64_t steps) {
  Reset();
  start_ = start;
  steps_left_ = steps;
  if (*std::max_element(remaining_.begin(), remaining_.end()) > capacity_) {
    return FitVerdict::kDoesNotFit;
  }
  std::vector<Waiting> all(problem_.items.size());
  for (int i = 0; i < static_cast<int>(all.size()); ++i) all[i].item = i;
  std::vector<int> cuts;
  for (int s = 0; s + 1 < problem_.slots; ++s) {
    if (crossing_[s] == 0) cuts.push_back(s + 1);
  }
  return SolveSplit({0, problem_.slots}, cuts, all);
}

// Solves the parts between `cuts`, which no waiting item crosses, one by one.
FitVerdict PackSearch::SolveSplit(Slots slots, const std::vector<int>& cuts,
                                  const std::vector<Waiting>& waiting) {
  struct Part {
    Slots slots;
    std::vector<int> items;
  };
  std::vector<Part> parts;
  for (size_t k = 0; k <= cuts.size(); ++k) {
    parts.push_back(
        {.slots = {k == 0 ? slots.begin : cuts[k - 1], k == cuts.size() ? slots.end : cuts[k]}});
  }
  for (const Waiting& w : waiting) {
    const int begin = problem_.items[w.item].begin;
    const auto part = std::upper_bound(cuts.begin(), cuts.end(), begin) - cuts.begin();
    parts[part].items.push_back(w.item);
  }
  // The smallest first: what cannot be solved should be found out cheaply.
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return a.items.size() < b.items.size(); });
  for (Part& part : parts) {
    if (part.items.empty()) continue;
    const FitVerdict verdict = SolvePart(part.slots, std::move(part.items));
    if (verdict != FitVerdict::kFits) return verdict;
  }
  return FitVerdict::kFits;
}

FitVerdict PackSearch::SolvePart(Slots slots, std::vector<int> items) {
  std::vector<Waiting> waiting;
  for (int item : InOrder(items)) waiting.push_back({item, static_cast<int>(waiting.size())});
  return Extend(slots, waiting, {});
}

// `value` changed by up to a half, by another amount in each start; not at all in the first round.
int64_t PackSearch::Shaken(int item, int64_t value) const {
  const int round = start_ / kStartOrderCount;
  if (round == 0) return value * 64;
  return value * (64 + static_cast<int64_t>(Mix(Mix(start_) + item) % 33));
}

std::vector<int> PackSearch::InOrder(const std::vector<int>& items) const {
  using Key = std::array<int64_t, 3>;
  std::vector<std::pair<Key, int>> keyed;
  for (int i : items) {
    const PackItem& item = problem_.items[i];
    int64_t tall = 0;
    for (int s = item.begin; s < item.end; ++s) tall = std::max(tall, remaining_[s]);
    const int64_t life = item.life();
    const int64_t area = life * (item.bytes / kPackAlignment);
    Key key;
    switch (kStartOrders[start_ % kStartOrderCount]) {
      case StartOrder::kTallLifeArea:
        key = {-tall, -Shaken(i, life), -area};
        break;
      case StartOrder::kTallMeetsSize:
        key = {-tall, -Shaken(i, meets_[i].size()), -item.bytes};
        break;
      case StartOrder::kTallAreaLife:
        key = {-tall, -Shaken(i, area), -life};
        break;
      case StartOrder::kLifeAreaTall:
        key = {-Shaken(i, life), -area, -tall};
        break;
    }
    keyed.push_back({key, i});
  }
  std::sort(keyed.begin(), keyed.end());
  std::vector<int> order;
  for (const auto& [key, item] : keyed) order.push_back(item);
  return order;
}

// Canonical: items are placed by offset, those of one offset by rank, so that each solution is met
// in one order only. Dominance: an item is not placed so high that a waiting one would fit below.
void PackSearch::ListCandidates(const std::vector<Waiting>& waiting, const Candidate& last,
                                std::vector<Candidate>* candidates) {
  int64_t lowest_top = kPlaced;
  for (const Waiting& w : waiting) {
    lowest_top = std::min(lowest_top, lowest_[w.item] + problem_.items[w.item].bytes);
  }
  candidates->clear();
  for (const Waiting& w : waiting) {
    const Candidate candidate = {lowest_[w.item], w.rank, w.item};
    if (candidate.offset < lowest_top && !(candidate < last)) candidates->push_back(candidate);
  }
  std::sort(candidates->begin(), candidates->end());
}

FitVerdict PackSearch::Extend(Slots slots, const std::vector<Waiting>& waiting, Candidate last) {
  if (waiting.empty()) return FitVerdict::kFits;
  steps_left_ -= static_cast<int64_t>(waiting.size());
  if (steps_left_ <= 0) {
    steps_left_ = 0;
    return FitVerdict::kGaveUp;
  }
  if (levels_.size() == depth_) levels_.emplace_back();
  Level& level = levels_[depth_++];
  ListCandidates(waiting, last, &level.candidates);
  FitVerdict verdict = FitVerdict::kDoesNotFit;
  for (const Candidate& candidate : level.candidates) {
    const size_t mark = changes_.size();
    if (Put(slots, candidate)) {
      level.waiting.clear();
      for (const Waiting& w : waiting) {
        if (w.item != candidate.item) level.waiting.push_back(w);
      }
      verdict = Descend(slots, level.waiting, candidate);
    }
    UndoTo(mark);
    if (verdict == FitVerdict::kFits) offsets_[candidate.item] = candidate.offset;
    if (verdict != FitVerdict::kDoesNotFit) break;
  }
  --depth_;
  return verdict;
}

// Where the placed item was the last to cross a boundary, the problem falls apart.
FitVerdict PackSearch::Descend(Slots slots, const std::vector<Waiting>& waiting,
                               const Candidate& placed) {
  const PackItem& item = problem_.items[placed.item];
  std::vector<int> cuts;
  for (int s = item.begin; s + 1 < item.end; ++s) {
    if (--crossing_[s] == 0) cuts.push_back(s + 1);
  }
  const FitVerdict verdict =
      cuts.empty() ? Extend(slots, waiting, placed) : SolveSplit(slots, cuts, waiting);
  for (int s = item.begin; s + 1 < item.end; ++s) ++crossing_[s];
  return verdict;
}

bool PackSearch::Put(Slots slots, const Candidate& candidate) {
  const PackItem& item = problem_.items[candidate.item];
  const int64_t top = candidate.offset + item.bytes;
  for (int s = item.begin; s < item.end; ++s) {
    Set(&floor_[s], top);
    Set(&remaining_[s], remaining_[s] - item.bytes);
  }
  Set(&lowest_[candidate.item], kPlaced);
  Slots lifted = {item.begin, item.end};
  if (!LiftNeighbours(candidate.item, top, &lifted)) return false;
  LiftFloors(lifted);
  // No later item goes below this one's offset, wherever it lives.
  steps_left_ -= slots.end - slots.begin;
  for (int s = slots.begin; s < slots.end; ++s) {
    if (std::max(floor_[s], candidate.offset) + remaining_[s] > capacity_) return false;
  }
  return true;
}

bool PackSearch::LiftNeighbours(int item, int64_t top, Slots* lifted) {
  steps_left_ -= static_cast<int64_t>(meets_[item].size());
  for (int j : meets_[item]) {
    if (lowest_[j] >= top) continue;
    const PackItem& other = problem_.items[j];
    if (top + other.bytes > capacity_) return false;
    Set(&lowest_[j], top);
    lifted->begin = std::min(lifted->begin, other.begin);
    lifted->end = std::max(lifted->end, other.end);
  }
  return true;
}

// A slot's floor is at least the lowest offset that an item waiting there could have.
void PackSearch::LiftFloors(Slots slots) {
  for (int s = slots.begin; s < slots.end; ++s) {
    if (remaining_[s] == 0) continue;
    int64_t lowest = kPlaced;
    for (int j : alive_[s]) lowest = std::min(lowest, lowest_[j]);
    steps_left_ -= static_cast<int64_t>(alive_[s].size());
    if (floor_[s] < lowest) Set(&floor_[s], lowest);
  }
}

void PackSearch::Set(int64_t* value, int64_t now) {
  changes_.push_back({value, *value});
  *value = now;
}

void PackSearch::UndoTo(size_t mark) {
  for (; changes_.size() > mark; changes_.pop_back()) {
    *changes_.back().value = changes_.back().old;
  }
}

}  // namespace terrace
