// Repairing a packing that does not quite fit: large neighbourhood search.
//
// In: a problem and a capacity. Out: a placement below the capacity, if one is found within the
// budget. Items are placed greedily; what does not fit is left out. Then again and again a few of
// the items around one that is left out (a box in time and offsets) are taken up and put back in
// another order together with it, and the result is kept unless more is left out than before.
// The work is local, so that a long program costs no more a try than a short one. The budget is
// counted in steps and the choices come from a fixed sequence: the same on every machine.
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/compiler/pack_problem.h"

namespace terrace {

class PackRepair {
 public:
  // `problem` must outlive the repair.
  PackRepair(const PackProblem& problem, int64_t capacity_bytes);

  // Takes what it uses from *steps (about 10 ns each). Writes to `placement` only when all items
  // lie below the capacity, and says so.
  bool Run(int64_t* steps, PackPlacement* placement);

 private:
  enum class Fit {
    kLowest,
    kContact,  // where the most time is shared with what lies right above and below
  };
  struct Placed {
    int64_t begin = 0;  // bytes
    int64_t end = 0;
    int item = 0;
  };
  struct Keyed {
    int64_t key = 0;
    int item = 0;
    auto operator<=>(const Keyed&) const = default;
  };
  // What is taken up in one try, and in which order it goes back.
  struct Box {
    int begin = 0;  // slots
    int end = 0;
    int64_t low = 0;  // bytes
    int64_t high = 0;
    int longest = 0;  // life
  };

  uint64_t Random(uint64_t below);
  template <typename Visit>
  void VisitAlive(int begin, int end, Visit visit);
  bool Place(int item, Fit fit);
  int64_t Contact(int item, int64_t offset) const;
  std::vector<int> Construct(const std::vector<int>& order, Fit fit);
  void ChooseStart();
  void Offer(std::vector<int> left_out);
  int64_t WeightOf(const std::vector<int>& items) const;
  Box ChooseBox(int item);
  bool TakeUp(const Box& box);
  void KeyTaken(const Box& box, int item);
  void PutBack();
  void Try();
  void Restore();

  const PackProblem& problem_;
  const int64_t capacity_;
  int64_t steps_left_ = 0;
  uint64_t state_ = 0;
  std::vector<int> by_birth_;
  std::vector<int> born_before_;            // by slot: how many of by_birth_ are born before it
  std::vector<std::vector<int>> snapshot_;  // every kSnapshotSlots slots: what is alive
  std::vector<int64_t> weight_;             // by item: what it costs to leave it out
  // The present state, and the best.
  std::vector<int64_t> offsets_;  // by item; kLeftOut
  std::vector<int> left_out_;
  int64_t left_weight_ = 0;
  std::vector<int64_t> best_offsets_;
  std::vector<int> best_left_out_;
  int64_t best_weight_ = 0;
  // Scratch of one try.
  std::vector<Placed> neighbours_;
  std::vector<int> taken_;
  std::vector<int64_t> taken_offsets_;
  std::vector<Keyed> keyed_;
  std::vector<int> still_out_;
  int64_t still_weight_ = 0;
  Fit fit_ = Fit::kLowest;
};

}  // namespace terrace
