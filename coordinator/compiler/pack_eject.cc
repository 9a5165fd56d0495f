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

namespace terrace {
namespace {

constexpr int kWaits = -1;  // the offset of what has none
// What a look at all offsets of an item costs beside its neighbours.
constexpr int64_t kLookSteps = 16;

// Ways to begin, in turn: what an item costs at first, in sizes, and whether any of the waiting
// ones may be next or only the last, at first the one that takes the most space over time. The
// first settles one conflict after the other, often soon and else never; the second wanders.
struct Tactic {
  int first_penalty = 1;
  bool any_next = false;
};
constexpr Tactic kTactics[] = {{1, false}, {8, true}};
// What goes wrong early may never come right: the steps of one try.
constexpr int64_t kTrySteps = 40'000'000;
// Grids, each with all tactics before the next: coarse, and fine (pack_cells.h).
constexpr int kRoomPercents[] = {90, 97};

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

// Changes of a function of the cells, added in any order and passed in that of the cells.
class Changes {
 public:
  explicit Changes(int cells)
      : change_(cells), words_(cells / 64 + 1), groups_(words_.size() / 64 + 1) {}

  void Add(int cell, int64_t change) {
    change_[cell] += change;
    words_[cell / 64] |= uint64_t{1} << cell % 64;
    groups_[cell / 4096] |= uint64_t{1} << cell / 64 % 64;
  }

  // Calls visit(cell, change) and forgets.
  template <typename Visit>
  void Pass(const Visit& visit) {
    for (size_t group = 0; group < groups_.size(); ++group) {
      for (; groups_[group] != 0; groups_[group] &= groups_[group] - 1) {
        const size_t word = 64 * group + std::countr_zero(groups_[group]);
        for (; words_[word] != 0; words_[word] &= words_[word] - 1) {
          const size_t cell = 64 * word + std::countr_zero(words_[word]);
          if (change_[cell] != 0) visit(static_cast<int>(cell), change_[cell]);
          change_[cell] = 0;
        }
      }
    }
  }

 private:
  std::vector<int64_t> change_;
  std::vector<uint64_t> words_;   // a bit a cell that may have changed
  std::vector<uint64_t> groups_;  // a bit a word
};

class Ejection {
 public:
  Ejection(const PackProblem& problem, const PackCells& cells);

  // True when everything has found a place.
  bool Try(const Tactic& tactic, int64_t steps);
  PackPlacement Placement() const;

 private:
  struct Box {
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

  const PackItem& Item(int box) const { return problem_.items[cells_.large[box]]; }
  void Begin(const Tactic& tactic);
  int TakeNext(const Tactic& tactic);
  Choice Choose(const Box& box, absl::Span<const int> neighbours);
  void Consider(int begin, int end, int64_t penalty, Choice* best);
  absl::Span<const int> Neighbours(int box) const {
    return absl::MakeConstSpan(neighbours_).subspan(first_[box], first_[box + 1] - first_[box]);
  }

  const PackProblem& problem_;
  const PackCells& cells_;
  std::vector<Box> boxes_;  // of cells_.large
  std::vector<int> first_;  // by box: where its neighbours begin; one more for the end
  std::vector<int> neighbours_;
  std::vector<int> waiting_;  // boxes without an offset
  Changes changes_;
  Random random_;
};

Ejection::Ejection(const PackProblem& problem, const PackCells& cells)
    : problem_(problem), cells_(cells), changes_(cells.cells + 2) {
  for (const int i : cells.large) {
    const int64_t bytes = problem.items[i].bytes;
    boxes_.push_back({.size = static_cast<int>((bytes + cells.cell_bytes - 1) / cells.cell_bytes)});
  }
  const int boxes = static_cast<int>(boxes_.size());
  std::vector<int> by_birth(boxes);
  std::iota(by_birth.begin(), by_birth.end(), 0);
  std::stable_sort(by_birth.begin(), by_birth.end(),
                   [&](int a, int b) { return Item(a).begin < Item(b).begin; });
  std::vector<std::vector<int>> meets(boxes);
  for (int k = 0; k < boxes; ++k) {
    for (int l = k + 1; l < boxes && Item(by_birth[l]).begin < Item(by_birth[k]).end; ++l) {
      meets[by_birth[k]].push_back(by_birth[l]);
      meets[by_birth[l]].push_back(by_birth[k]);
    }
  }
  for (const std::vector<int>& others : meets) {
    first_.push_back(static_cast<int>(neighbours_.size()));
    neighbours_.insert(neighbours_.end(), others.begin(), others.end());
  }
  first_.push_back(static_cast<int>(neighbours_.size()));
}

void Ejection::Begin(const Tactic& tactic) {
  for (Box& box : boxes_) {
    box.offset = kWaits;
    box.penalty = int64_t{tactic.first_penalty} * box.size;
  }
  waiting_.resize(boxes_.size());
  std::iota(waiting_.begin(), waiting_.end(), 0);
  const auto area = [&](int box) { return int64_t{boxes_[box].size} * Item(box).life(); };
  std::stable_sort(waiting_.begin(), waiting_.end(),
                   [&](int a, int b) { return area(a) < area(b); });
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
  for (size_t k = 0; k < boxes_.size(); ++k) {
    placement.offsets[cells_.large[k]] = boxes_[k].offset * cells_.cell_bytes;
  }
  int64_t top = 0;
  for (const int i : cells_.large)
    top = std::max(top, placement.offsets[i] + problem_.items[i].bytes);
  for (size_t k = 0; k < cells_.small.size(); ++k) {
    placement.offsets[cells_.small[k]] = top + cells_.small_offsets[k];
  }
  placement.arena_bytes = top + cells_.small_bytes;
  return placement;
}

}  // namespace

PackPlacement PackByEjection(const PackProblem& problem, int64_t ceiling_bytes, int64_t steps) {
  std::vector<PackCells> grids;
  for (const int percent : kRoomPercents) {
    PackCells cells = MakePackCells(problem, ceiling_bytes, percent);
    if (cells.cell_bytes > 0) grids.push_back(std::move(cells));
  }
  if (grids.empty()) return {};
  std::vector<Ejection> ejections;
  for (const PackCells& cells : grids) ejections.emplace_back(problem, cells);
  for (size_t k = 0; steps > 0; ++k, steps -= kTrySteps) {
    const Tactic& tactic = kTactics[k % std::size(kTactics)];
    Ejection& ejection = ejections[k / std::size(kTactics) % ejections.size()];
    if (ejection.Try(tactic, std::min(steps, kTrySteps))) return ejection.Placement();
  }
  return {};
}

}  // namespace terrace
