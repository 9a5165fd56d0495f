// What the tests of the checker start from: a program of two ranks, and what is said of it.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "proto/check/program_check.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"
#include "tests/unit/proto/check/mutate.h"

namespace terrace {

inline v1::Program TwoRanks() { return CompileTiny({.data_parallel = 2, .micro_batches = 2}); }

inline v1::Sequence* Train(v1::Program* program) { return program->mutable_sequences(0); }

inline std::string Message(const v1::Program& program) {
  const absl::Status status = CheckProgram(program);
  EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

// The first instruction of training that runs `op`.
inline v1::Instruction* First(const char* op, v1::Program* program) {
  return Train(program)->mutable_instructions(FindOp(*Train(program), op));
}

}  // namespace terrace
