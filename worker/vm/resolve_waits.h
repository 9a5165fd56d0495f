// Turns the waits of a sequence's instructions into positions of other streams, and drops those
// that an earlier one of the same stream implies.
//
// In a loop a wait for an instruction of the body moves on with each iteration, by as many
// instructions as its stream has there. So does what earlier waits of the body imply: what one
// iteration needs and knows holds for all of them, but for what was known before the first and what
// the iteration before has waited for. A wait that is dropped is implied in every iteration.
//
// Pure. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "proto/program/loops.h"
#include "proto/program/played.h"
#include "proto/v1/program.pb.h"
#include "worker/vm/prepared_program.h"

namespace terrace {

class WaitResolver {
 public:
  // Borrows the sequence and `loops`. REQUIRES: as LoopIndex.
  WaitResolver(const v1::Sequence& sequence, const LoopIndex& loops, int streams);

  // Of the sequence's next instruction.
  std::vector<WaitPoint> Next();

 private:
  // By waiting stream and stream waited for: positions of iteration 0.
  using Positions = std::map<std::pair<uint32_t, uint32_t>, int64_t>;

  WaitPoint PointOf(int instruction, uint32_t target, int64_t back) const;
  // The most that the instruction waits for, on every other stream.
  std::vector<WaitPoint> Wanted(int instruction) const;
  void Enter(int loop);
  void Leave(int loop);
  bool IsKnown(uint32_t stream, const WaitPoint& point, int64_t trips) const;

  const v1::Sequence& sequence_;
  const LoopIndex& loops_;
  std::vector<int64_t> positions_;  // by instruction: played, in iteration 0
  int next_ = 0;
  // By waiting stream and stream waited for: the largest position that is known to be finished,
  // whatever the iteration.
  std::vector<std::vector<int32_t>> seen_;
  Positions in_body_;  // waits of the present loop so far, in the same iteration
  Positions of_body_;  // and of its whole body
};

}  // namespace terrace
