// Exact packing by depth-first search, after MiniMalloc (Moffitt 2023, ASPLOS).
//
// In: a problem and a capacity. Out: offsets below it, the proof that there are none, or neither
// when the budget runs out. The search places items upwards, each at the lowest offset that what is
// already placed leaves it, and cuts off what cannot lead to a solution or leads to one that has
// been tried (docs/memory.md). One start that goes wrong may never come back, so there are many
// short ones, each in another order. The budget is counted in steps, never in time: the same on
// every machine. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "coordinator/compiler/pack_problem.h"

namespace terrace {

enum class FitVerdict {
  kFits,
  kDoesNotFit,  // proved
  kGaveUp,      // out of steps
};

class PackSearch {
 public:
  // `problem` must outlive the search. Memory grows with the pairs of items that meet: for some
  // thousands of items.
  explicit PackSearch(const PackProblem& problem);

  // Looks for offsets with which all items lie below `capacity_bytes`; writes them to `placement`
  // only when there are some. Takes what it uses from *steps; about 10^9 steps are 2 seconds.
  FitVerdict Fit(int64_t capacity_bytes, int64_t* steps, PackPlacement* placement);

 private:
  struct Slots {
    int begin = 0;
    int end = 0;
  };
  // An item that has no place yet. The rank is its turn among equals: the order of this start.
  struct Waiting {
    int item = 0;
    int rank = 0;
  };
  struct Candidate {
    int64_t offset = 0;
    int rank = 0;
    int item = 0;
    bool operator<(const Candidate& other) const {
      return offset != other.offset ? offset < other.offset : rank < other.rank;
    }
  };
  struct Change {
    int64_t* value = nullptr;
    int64_t old = 0;
  };
  // Scratch of one level of the recursion, kept to avoid allocation.
  struct Level {
    std::vector<Candidate> candidates;
    std::vector<Waiting> waiting;
  };

  void Reset();
  FitVerdict Start(int start, int64_t steps);
  FitVerdict SolvePart(Slots slots, std::vector<int> items);
  FitVerdict Extend(Slots slots, const std::vector<Waiting>& waiting, Candidate last);
  FitVerdict Descend(Slots slots, const std::vector<Waiting>& waiting, const Candidate& placed);
  FitVerdict SolveSplit(Slots slots, const std::vector<int>& cuts,
                        const std::vector<Waiting>& waiting);
  void ListCandidates(const std::vector<Waiting>& waiting, const Candidate& last,
                      std::vector<Candidate>* candidates);
  // False when some item or slot can no longer stay below the capacity.
  bool Put(Slots slots, const Candidate& candidate);
  bool LiftNeighbours(int item, int64_t top, Slots* lifted);
  void LiftFloors(Slots slots);
  void Set(int64_t* value, int64_t now);
  void UndoTo(size_t mark);
  std::vector<int> InOrder(const std::vector<int>& items) const;
  int64_t Shaken(int item, int64_t value) const;

  const PackProblem& problem_;
  std::vector<std::vector<int>> meets_;  // by item: the items that live with it
  std::vector<std::vector<int>> alive_;  // by slot: the items that live in it
  int64_t capacity_ = 0;
  int start_ = 0;
  int64_t steps_left_ = 0;
  // The state of the search; everything but offsets_ is restored from changes_.
  std::vector<int64_t> lowest_;     // by item: not below what it meets; kPlaced once placed
  std::vector<int64_t> floor_;      // by slot: nothing more goes below
  std::vector<int64_t> remaining_;  // by slot: bytes that have no place yet
  std::vector<int> crossing_;       // by slot: waiting items that live on into the next
  std::vector<int64_t> offsets_;
  std::vector<Change> changes_;
  std::deque<Level> levels_;
  size_t depth_ = 0;
};

}  // namespace terrace
