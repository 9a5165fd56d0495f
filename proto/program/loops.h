// The loops of a sequence: what an instruction touches in an iteration, and the same sequence
// without loops.
//
// A program with loops of many iterations does what one with fewer iterations does: the same
// prologue, the same body, the same epilogue. Whoever needs a straight list (liveness, packing, the
// checker, the simulator, pictures) takes the one that WriteOut makes, in which each value of an
// iteration has a buffer entry of its own.
//
// Pure. Thread-safe: LoopIndex is constant once made, and borrows the sequence.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "proto/program/play_order.h"
#include "proto/v1/program.pb.h"

namespace terrace {

inline constexpr int kNoLoop = -1;

bool HasLoops(const v1::Program& program);

// Whether the loops lie inside the sequence, in order, without overlap, and each has instructions
// and trips.
bool LoopsFit(const v1::Sequence& sequence);

// How many instructions a rank executes: each of a body once an iteration.
int64_t PlayedInstructions(const v1::Sequence& sequence);

class LoopIndex {
 public:
  // REQUIRES: LoopsFit.
  explicit LoopIndex(const v1::Sequence& sequence);

  // Index in Sequence.loops; kNoLoop for an instruction outside.
  int LoopOf(int instruction) const { return loop_of_[instruction]; }
  bool IsBehindALoop(int instruction) const;
  // How often the instruction is executed: what is summed over a step counts it so often.
  int64_t TripsOf(int instruction) const;
  // Which value of its buffers the operand touches. REQUIRES: operand.slots() > 0; `iteration` is 0
  // outside of loops.
  int64_t ValueOf(const v1::Operand& operand, int instruction, int64_t iteration) const;
  uint32_t BufferOf(const v1::Operand& operand, int instruction, int64_t iteration) const;
  int64_t OffsetOf(const v1::Operand& operand, int instruction, int64_t iteration) const;
  int MicroBatchOf(int instruction, int64_t iteration) const;
  // How many instructions of a stream a body has.
  int64_t InBody(int loop, uint32_t stream) const;
  // Bytes by which iterations go on in an array with a row a micro-batch; 0: the buffer is none.
  int64_t ArrayStep(uint32_t buffer) const;
  const std::map<uint32_t, int64_t>& arrays() const { return arrays_; }
  // Whether the operand is all rows of such an array: with fewer iterations it has fewer.
  bool IsAllRows(const v1::Operand& operand, int instruction) const;
  // Rows that so many iterations write.
  int64_t RowsOf(int64_t iterations) const;

 private:
  const v1::Sequence& sequence_;
  std::vector<int> loop_of_;                          // by instruction
  std::vector<std::map<uint32_t, int64_t>> in_body_;  // by loop and stream
  std::map<uint32_t, int> loop_of_slots_;             // by the first buffer of the slots
  std::map<uint32_t, int64_t> arrays_;                // by buffer, ArrayStep
};

// After so many iterations all slots of the program are in their first places again; at most
// kTurnMax, because two turns are looked at wherever a program is written out.
inline constexpr int64_t kTurnMax = 128;
int64_t TurnOf(const v1::Program& program);
// How many iterations show all that there is to see of the program: every meeting of values in
// buffers that are used in turn, and every wait for an earlier iteration.
int64_t IterationsThatShow(const v1::Program& program);
// The most iterations that may be left out of every loop so that those which show all remain; a
// multiple of the turn. 0: none.
int64_t IterationsToLeaveOut(const v1::Program& program);
// The same so that `kept` iterations remain of each loop.
int64_t IterationsToLeaveOut(const v1::Program& program, int64_t kept);

struct WrittenOut {
  // Without loops. `rules` are those of the micro-batches that are left. Buffers 0 to
  // program.buffers_size() - 1 are those of the original, in their places; behind them one for each
  // value of each iteration.
  v1::Program program;
  std::vector<uint32_t> buffers;  // by buffer: that of the original in whose bytes it lies
  // Of the buffers behind those of the original: the first of the slots, and the value's number.
  // One that is touched behind a loop is numbered by the iterations that were left in.
  struct Value {
    uint32_t first = 0;
    int64_t number = 0;
  };
  std::vector<Value> values;
  using Played = PlayedInstruction;
  std::vector<std::vector<Played>> played;  // by sequence and instruction
  int64_t left_out = 0;                     // iterations of each loop
};

// REQUIRES: LoopIndex can be made of every sequence; `leave_out` is below the trips of every loop.
// Where it is no multiple of the turn, values behind a loop lie elsewhere than those that the loop
// leaves there: such a program says nothing about memory, only about order and time.
WrittenOut WriteOut(const v1::Program& program, int64_t leave_out);

}  // namespace terrace
