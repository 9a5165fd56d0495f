// By default every stage of tiny jobs is within 1 % of the bytes alive at once as well, though that
// is two or three pages.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "proto/program_check.h"
#include "tests/unit/coordinator/compiler/layout_matrix.h"

namespace terrace {
namespace {

// All combinations take many minutes: TERRACE_ALL_LAYOUTS=1 runs them, otherwise a fixed sample.
size_t Every() { return std::getenv("TERRACE_ALL_LAYOUTS") != nullptr ? 1 : 307; }

std::vector<v1::Program> ExpectWithinOnePercent(const LayoutCase& c) {
  const auto programs = CompileCase(c);
  EXPECT_TRUE(programs.ok()) << Describe(c) << ": " << programs.status();
  if (!programs.ok()) return {};
  for (const v1::Program& program : *programs) {
    const v1::Arena& arena = program.arenas(0);
    const int64_t bound = arena.lower_bound_bytes();
    EXPECT_LE(arena.bytes() - bound, bound / 100) << Describe(c) << " stage " << program.stage();
    EXPECT_EQ(arena.unearned_bound_bytes(), 0) << Describe(c) << " stage " << program.stage();
  }
  return *programs;
}

TEST(SmallStagesTest, EveryCombinationIsWithinOnePercent) {
  const std::vector<LayoutCase> cases = LayoutMatrix(8, Every());
  for (const LayoutCase& c : cases) ExpectWithinOnePercent(c);
  EXPECT_GT(cases.size(), 30u);
}

// Searches leave 11 KiB of it, 1.01 %.
TEST(SmallStagesTest, WhatOrdersAndSearchesLeaveGetsPages) {
  const std::vector<LayoutCase> cases = LayoutMatrix(8, 1);
  const auto hard = std::find_if(cases.begin(), cases.end(), [](const LayoutCase& c) {
    return Describe(c) ==
           "gpt2 bf16 dp2 tp2+sp pp1x1 1f1b cp2 ulysses zero2 selective m4 bf16 links";
  });
  ASSERT_NE(hard, cases.end());
  const std::vector<v1::Program> programs = ExpectWithinOnePercent(*hard);
  ASSERT_FALSE(programs.empty());
  EXPECT_GT(programs[0].arenas(0).aliases_size(), 0) << "needs no pages any more";
  EXPECT_TRUE(CheckPrograms(programs).ok()) << CheckPrograms(programs);
}

}  // namespace
}  // namespace terrace
