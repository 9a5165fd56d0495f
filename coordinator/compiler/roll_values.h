// What a rolled part is made of, and who shares a buffer in it. Internal to roll.cc.
//
// Two values are the same one of two iterations when the same operand of the same instruction
// touches them. Those of all iterations are a chain: value n of it takes the place of value n - 1.
// How many are in use at a time follows from their lives (liveness.h) in the straight list.
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
    std::map<int, uint32_t> buffers;  // by the value's number; 0: of the first iteration's first
    int slots = 0;
  };
  std::vector<Chain> chains;
  std::map<uint32_t, std::pair<int, int>> numbers;  // by buffer: chain, and number in it
  // With a row a micro-batch: by buffer, the bytes from one iteration's row to the next.
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

// Puts the loops in place; each has `more` iterations more than the list, of so many micro-batches.
// By sequence; none where it stays straight.
void WriteLoops(const std::vector<std::optional<RolledSequence>>& rolled, int64_t more,
                int64_t an_iteration, v1::Program* program);

absl::Status DoesNotRepeat(const v1::Sequence& sequence, const v1::Instruction* instruction,
                           const char* why);

}  // namespace terrace::compiler
