// What must hold for the programs of every layout.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "proto/check/program_check.h"
#include "proto/program/loops.h"
#include "tests/unit/coordinator/compiler/layout_matrix.h"

namespace terrace {
namespace {

// All combinations take minutes: TERRACE_ALL_LAYOUTS=1 runs them, otherwise a fixed sample.
size_t Every() { return std::getenv("TERRACE_ALL_LAYOUTS") != nullptr ? 1 : 37; }

// Bytes of an arena up to the last one of a sequence's STEP buffers.
int64_t Reach(const v1::Program& program, const std::string& sequence, uint32_t arena) {
  int64_t bytes = 0;
  for (const v1::Buffer& buffer : program.buffers()) {
    if (buffer.lifetime() != v1::STEP || buffer.sequence() != sequence || buffer.arena() != arena)
      continue;
    bytes = std::max(bytes, buffer.offset() + buffer.bytes());
  }
  return bytes;
}

void ExpectTrainDecidesArenas(const std::vector<v1::Program>& programs, const std::string& what) {
  for (const v1::Program& program : programs) {
    for (const v1::Arena& arena : program.arenas()) {
      EXPECT_LE(Reach(program, "eval", arena.id()), Reach(program, "train", arena.id()))
          << what << ", stage " << program.stage() << ", arena " << arena.id();
    }
  }
}

TEST(LayoutsTest, EveryCombinationPassesTheChecker) {
  int failures = 0;
  const std::vector<LayoutCase> cases = LayoutMatrix(8, Every());
  for (const LayoutCase& c : cases) {
    const auto programs = CompileCase(c);
    const absl::Status status = programs.ok() ? CheckPrograms(*programs) : programs.status();
    EXPECT_EQ(status, absl::OkStatus()) << Describe(c);
    if (programs.ok()) ExpectTrainDecidesArenas(*programs, Describe(c));
    if (!status.ok() && ++failures > 20) FAIL() << "too many";
  }
  RecordProperty("cases", static_cast<int>(cases.size()));
  EXPECT_GT(cases.size(), 50u);
}

TEST(LayoutsTest, EveryCombinationLoopsWhereItsStepIsLong) {
  int loops = 0;
  for (LayoutCase c : LayoutMatrix(8, Every())) {
    if (c.layout.schedule() != "1f1b") continue;
    c.layout.set_micro_batches(48);
    const auto programs = CompileCase(c);
    ASSERT_EQ(programs.status(), absl::OkStatus()) << Describe(c);
    EXPECT_EQ(CheckPrograms(*programs), absl::OkStatus()) << Describe(c);
    for (const v1::Program& program : *programs) {
      EXPECT_TRUE(HasLoops(program)) << Describe(c) << ", stage " << program.stage();
      ++loops;
    }
  }
  EXPECT_GT(loops, 50);
}

TEST(LayoutsTest, EvalNeedsNoMoreThanTrainWhereTheLossIsComputedInChunks) {
  int cases = 0;
  for (LayoutCase c : LayoutMatrix(4, 5 * Every())) {
    for (const bool offloaded : {false, true}) {
      for (const int64_t tile_bytes : {0, 1 << 20}) {
        c.layout.set_tile_bytes(tile_bytes);
        c.layout.clear_offload();
        if (offloaded) PutOn(v1::HOST, c.layout.mutable_offload()->mutable_optimizer());
        const bool weights = offloaded && c.layout.zero_stage() % 3 == 0;
        if (weights) PutOn(v1::HOST, c.layout.mutable_offload()->mutable_parameter());
        const std::string what =
            absl::StrCat(Describe(c), offloaded ? " on host" : "", " tiles of ", tile_bytes);
        const auto programs = CompileWithManyLogits(c);
        ASSERT_EQ(programs.status(), absl::OkStatus()) << what;
        ExpectTrainDecidesArenas(*programs, what);
        ++cases;
      }
    }
  }
  EXPECT_GT(cases, 60);
}

}  // namespace
}  // namespace terrace
