// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack_eject.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/compiler/pack_cells.h"
#include "coordinator/compiler/pack_changes.h"
#include "coordinator/compiler/pack_repeats.h"

namespace terrace {
namespace {

constexpr int kWaits = -1;  // the offset of what has none
// What a look at all offsets of an item costs beside its neighbours.
constexpr int64_t kLookSteps = 16;

// What goes first at the beginning; a class is a power of two.
enum class EjectOrder {
  kLifeClassBirth,
  kLifeClassDeath,  // last first
  kAreaClassBirth,
  kArea,
};

// Ways to begin: the order, what an item costs at first, in sizes, and whether any of the waiting
// ones may be next or only the last. The former wander; the latter settle one conflict after the
// other, often soon and else never. In the order of births that leads through the program from its
// start to its end, once a class of lives.
struct Tactic {
  EjectOrder order = EjectOrder::kLifeClassBirth;
  int first_penalty = 1;
  bool any_next = false;
};
constexpr Tactic kTactics[] = {{EjectOrder::kLifeClassBirth, 1, false},
                               {EjectOrder::kLifeClassDeath, 1, false},
                               {EjectOrder::kAreaClassBirth, 1, false},
                               {EjectOrder::kArea, 1, false},
                               {EjectOrder::kArea, 8, true}};
// What goes wrong early may never come right: the steps of one try.
constexpr int64_t kTrySteps = 14'000'000;
// Grids, each with all tactics before the next: coarse, and fine (pack_cells.h).
constexpr int kRoomPercents[] = {90, 97};

// Before them chains of what comes again (pack_repeats.h), on the coarse grid, in many short tries:
// those that fit do so soon. At most one part in so many of all steps.
constexpr Tactic kChainTactic = {EjectOrder::kAreaClassBirth, 1, false};
constexpr int64_t kChainSteps = 1'000'000;
constexpr int64_t kChainPart = 5;

// xorshift64 (Marsaglia 2003).
class Random {
 public:
  uint32_t Below(uint32_t limit) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<uint32_t>(state_ >> 16) % limit;
  }

 private:
  uint64_t state_ = 88172645463325252u;
};

class Ejection {
 public:
  Ejection(const PackProblem& problem, const PackCells& cells, const PackChains& chains);

  // True when everything has found a place.
  bool Try(const Tactic& tactic, int64_t steps);
  PackPlacement Placement() const;

 private:
  // A chain of items that share an offset; of one size.
  struct Box {
    std::vector<int> items;
    int size = 0;  // cells
    int offset = kWaits;
    int64_t penalty = 0;  // what it costs to eject it
  };
  struct Choice {
    int offset = 0;
    int64_t penalty = std::numeric_limits<int64_t>::max();  // of all that lie there
    int length = 0;                                         // of the run of such offsets
    uint32_t equals = 0;
  };

  void FindNeighbours();
  std::pair<int64_t, int64_t> KeyOf(const Box& box, EjectOrder order) const;
  void Begin(const Tactic& tactic);
  int TakeNext(const Tactic& tactic);
  Choice Choose(const Box& box, absl::Span<const int> neighbours);
  void Consider(int begin, int end, int64_t penalty, Choice* best);
  absl::Span<const int> Neighbours(int box) const {
    return absl::MakeConstSpan(neighbours_).subspan(first_[box], first_[box + 1] - first_[box]);
  }

  const PackProblem& problem_;
  const PackCells& cells_;
  std::vector<Box> boxes_;  // of all that is in cells_.large
  std::vector<int> first_;  // by box: where its neighbours begin; one more for the end
  std::vector<int> neighbours_;
  std::vector<int> waiting_;  // boxes without an offset
  PackChanges changes_;
  Random random_;
};

Ejection::Ejection(const PackProblem& problem, const PackCells& cells, const PackChains& chains)
    : problem_(problem), cells_(cells), changes_(cells.cells + 2) {
  std::vector<bool> is_large(problem.items.size());
  for (const int i : cells.large) is_large[i] = true;
  for (const std::vector<int>& chain : chains) {
    if (!is_large[chain.front()]) continue;
    const int64_t bytes = problem.items[chain.front()].bytes;
    boxes_.push_back({.items = chain,
                      .size = static_cast<int>((bytes + cells.cell_bytes - 1) / cells.cell_bytes)});
  }
  FindNeighbours();
}

void Ejection::FindNeighbours() {
  std::vector<int> box_of(problem_.items.size());
  for (size_t box = 0; box < boxes_.size(); ++box) {
    for (const int i : boxes_[box].items) box_of[i] = static_cast<int>(box);
  }
  std::vector<int> by_birth = cells_.large;
  const auto item = [&](size_t k) { return problem_.items[by_birth[k]]; };
  std::stable_sort(by_birth.begin(), by_birth.end(),
                   [&](int a, int b) { return problem_.items[a].begin < problem_.items[b].begin; });
  std::vector<std::vector<int>> meets(boxes_.size());
  for (size_t k = 0; k < by_birth.size(); ++k) {
    for (size_t l = k + 1; l < by_birth.size() && item(l).begin < item(k).end; ++l) {
      meets[box_of[by_birth[k]]].push_back(box_of[by_birth[l]]);
      meets[box_of[by_birth[l]]].push_back(box_of[by_birth[k]]);
    }
  }
  for (std::vector<int>& others : meets) {
    std::sort(others.begin(), others.end());
    others.erase(std::unique(others.begin(), others.end()), others.end());
    first_.push_back(static_cast<int>(neighbours_.size()));
    neighbours_.insert(neighbours_.end(), others.begin(), others.end());
  }
  first_.push_back(static_cast<int>(neighbours_.size()));
}

// Boxes of larger keys go first.
std::pair<int64_t, int64_t> Ejection::KeyOf(const Box& box, EjectOrder order) const {
  const auto log2 = [](int64_t value) { return std::bit_width(static_cast<uint64_t>(value)); };
  int64_t area = 0;
  for (const int i : box.items) area += int64_t{box.size} * problem_.items[i].life();
  const PackItem& first = problem_.items[box.items.front()];
  switch (order) {
    case EjectOrder::kLifeClassBirth:
      return {log2(first.life()), -first.begin};
    case EjectOrder::kLifeClassDeath:
      return {log2(first.life()), problem_.items[box.items.back()].end};
    case EjectOrder::kAreaClassBirth:
      return {log2(area), -first.begin};
    case EjectOrder::kArea:
      return {area, 0};
  }
  return {};
}

void Ejection::Begin(const Tactic& tactic) {
  std::vector<std::pair<int64_t, int64_t>> keys;
  for (Box& box : boxes_) {
    box.offset = kWaits;
    box.penalty = int64_t{tactic.first_penalty} * box.size;
    keys.push_back(KeyOf(box, tactic.order));
  }
  waiting_.resize(boxes_.size());
  std::iota(waiting_.begin(), waiting_.end(), 0);
  std::stable_sort(waiting_.begin(), waiting_.end(),
                   [&](int a, int b) { return keys[a] < keys[b]; });
}

int Ejection::TakeNext(const Tactic& tactic) {
  size_t next = waiting_.size() - 1;
  if (tactic.any_next && random_.Below(2) == 0) {
    next = random_.Below(static_cast<uint32_t>(waiting_.size()));
  }
  const int box = waiting_[next];
  waiting_[next] = waiting_.back();
  waiting_.pop_back();
  return box;
}

// The offsets [begin, end) all cost `penalty`. Of what is free the tightest hole, of equals any;
// the item goes to one of its ends.
void Ejection::Consider(int begin, int end, int64_t penalty, Choice* best) {
  if (begin >= end || penalty > best->penalty) return;
  const int length = penalty == 0 ? end - begin : 0;
  if (penalty == best->penalty && length > best->length) return;
  if (penalty < best->penalty || length < best->length) best->equals = 0;
  best->penalty = penalty;
  best->length = length;
  if (random_.Below(++best->equals) == 0) best->offset = random_.Below(2) == 0 ? begin : end - 1;
}

Ejection::Choice Ejection::Choose(const Box& box, absl::Span<const int> neighbours) {
  const int offsets = cells_.cells - box.size + 1;
  for (const int j : neighbours) {
    const Box& other = boxes_[j];
    if (other.offset == kWaits) continue;
    const int begin = std::max(0, other.offset - box.size + 1);
    const int end = std::min(offsets, other.offset + other.size);
    if (begin >= end) continue;
    changes_.Add(begin, other.penalty);
    changes_.Add(end, -other.penalty);
  }
  Choice best;
  int begin = 0;
  int64_t penalty = 0;
  changes_.Pass([&](int cell, int64_t change) {
    Consider(begin, cell, penalty, &best);
    begin = cell;
    penalty += change;
  });
  Consider(begin, offsets, penalty, &best);
  return best;
}

bool Ejection::Try(const Tactic& tactic, int64_t steps) {
  Begin(tactic);
  while (!waiting_.empty() && steps > 0) {
    const int i = TakeNext(tactic);
    Box& box = boxes_[i];
    const absl::Span<const int> neighbours = Neighbours(i);
    steps -= static_cast<int64_t>(neighbours.size()) + kLookSteps;
    const Choice choice = Choose(box, neighbours);
    box.offset = choice.offset;
    if (choice.penalty == 0) continue;
    box.penalty += box.size;
    for (const int j : neighbours) {
      Box& other = boxes_[j];
      if (other.offset == kWaits || other.offset >= box.offset + box.size ||
          other.offset + other.size <= box.offset) {
        continue;
      }
      other.offset = kWaits;
      waiting_.push_back(j);
    }
  }
  return waiting_.empty();
}

PackPlacement Ejection::Placement() const {
  PackPlacement placement;
  placement.offsets.resize(problem_.items.size());
  int64_t top = 0;
  for (const Box& box : boxes_) {
    for (const int i : box.items) {
      placement.offsets[i] = box.offset * cells_.cell_bytes;
      top = std::max(top, placement.offsets[i] + problem_.items[i].bytes);
    }
  }
  for (size_t k = 0; k < cells_.small.size(); ++k) {
    placement.offsets[cells_.small[k]] = top + cells_.small_offsets[k];
  }
  placement.arena_bytes = top + cells_.small_bytes;
  return placement;
}

PackPlacement TryChains(const PackProblem& problem, const PackCells& cells, int64_t steps) {
  const PackChains chains = MakePackChains(problem);
  if (chains.empty() || chains.size() == problem.items.size()) return {};
  Ejection ejection(problem, cells, chains);
  for (; steps > 0; steps -= kChainSteps) {
    if (ejection.Try(kChainTactic, std::min(steps, kChainSteps))) return ejection.Placement();
  }
  return {};
}

}  // namespace

PackPlacement PackByEjection(const PackProblem& problem, int64_t ceiling_bytes, int64_t steps) {
  std::vector<PackCells> grids;
  for (const int percent : kRoomPercents) {
    PackCells cells = MakePackCells(problem, ceiling_bytes, percent);
    if (cells.cell_bytes > 0) grids.push_back(std::move(cells));
  }
  if (grids.empty()) return {};
  const PackPlacement repeated = TryChains(problem, grids.front(), steps / kChainPart);
  if (!repeated.offsets.empty()) return repeated;
  steps -= steps / kChainPart;
  std::vector<Ejection> ejections;
  for (const PackCells& cells : grids) {
    ejections.emplace_back(problem, cells, SinglePackChains(problem));
  }
  for (size_t k = 0; steps > 0; ++k, steps -= kTrySteps) {
    const Tactic& tactic = kTactics[k % std::size(kTactics)];
    Ejection& ejection = ejections[k / std::size(kTactics) % ejections.size()];
    if (ejection.Try(tactic, std::min(steps, kTrySteps))) return ejection.Placement();
  }
  return {};
}

}  // namespace terrace
