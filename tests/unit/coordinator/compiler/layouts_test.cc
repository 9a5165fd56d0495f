// What must hold for the programs of every layout.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>

#include "proto/program_check.h"
#include "tests/unit/coordinator/compiler/layout_matrix.h"

namespace terrace {
namespace {

// All combinations take minutes: TERRACE_ALL_LAYOUTS=1 runs them, otherwise a fixed sample.
size_t Every() { return std::getenv("TERRACE_ALL_LAYOUTS") != nullptr ? 1 : 37; }

TEST(LayoutsTest, EveryCombinationPassesTheChecker) {
  int failures = 0;
  const std::vector<LayoutCase> cases = LayoutMatrix(8, Every());
  for (const LayoutCase& c : cases) {
    const auto programs = CompileCase(c);
    const absl::Status status = programs.ok() ? CheckPrograms(*programs) : programs.status();
    EXPECT_EQ(status, absl::OkStatus()) << Describe(c);
    if (!status.ok() && ++failures > 20) FAIL() << "too many";
  }
  RecordProperty("cases", static_cast<int>(cases.size()));
  EXPECT_GT(cases.size(), 50u);
}

}  // namespace
}  // namespace terrace
