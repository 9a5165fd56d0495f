// Which values of different iterations share buffers, and how a rolled sequence is written.
// Internal to roll.cc.
//
// When the same operand of the same instruction touches one value in one iteration and another
// value in the next, the second takes the place of the first. Values that take each other's places
// form a chain. How many of them are in use at a time follows from their lives (liveness.h) in the
// straight list.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/v1/program.pb.h"

namespace terrace::compiler {

// Which part of a straight list repeats: `count` iterations of `length` instructions.
struct Iterations {
  int first = 0;  // instruction
  int length = 0;
  int count = 0;
  int begin(int iteration) const { return first + iteration * length; }
  int end() const { return begin(count); }
  bool Has(int instruction) const { return instruction >= first && instruction < end(); }
};

struct RolledWait {
  int instruction = 0;  // of the body, from 0 on
  int back = 0;         // iterations
};

struct RolledValues {
  struct Chain {
    std::map<int, uint32_t> buffers;  // by the value's number, as in Operand.slot of iteration 0
    int slots = 0;
  };
  std::vector<Chain> chains;
  std::map<uint32_t, std::pair<int, int>> numbers;  // by buffer: chain, and number in it
  // Buffers that have a row for each micro-batch, and the bytes from one iteration's row to the
  // next.
  std::map<uint32_t, int64_t> arrays;
};

// FAILED_PRECONDITION where operands of one instruction do not move alike in all iterations.
absl::StatusOr<RolledValues> FindValues(const v1::Program& program, const v1::Sequence& sequence,
                                        const Iterations& iterations, int64_t micro_batches);

struct RolledSequence {
  Iterations iterations;
  std::vector<std::vector<RolledWait>> waits;  // by instruction of the body
  RolledValues values;
};

// Gives chains more slots than they need, so that all slots are in their first places again after
// at most kTurnMax iterations (proto/program/loops.h), a turn. Of all turns it takes the shortest
// of those that cost the least memory or next to nothing more. FAILED_PRECONDITION when a chain
// needs more slots than the longest turn has iterations.
absl::Status AlignSlots(const v1::Program& program,
                        std::vector<std::optional<RolledSequence>>* rolled);

// Writes the loops into the program. Each has `more` iterations more than were found in the list,
// of `an_iteration` micro-batches each. `rolled` is by sequence; one without a value stays
// straight.
void WriteLoops(const std::vector<std::optional<RolledSequence>>& rolled, int64_t more,
                int64_t an_iteration, v1::Program* program);

absl::Status DoesNotRepeat(const v1::Sequence& sequence, const v1::Instruction* instruction,
                           const char* why);

}  // namespace terrace::compiler
