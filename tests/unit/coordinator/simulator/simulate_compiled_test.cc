// The simulator on programs that the compiler made.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "coordinator/hardware/profiles.h"
#include "coordinator/simulator/simulate.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace {
namespace {

TEST(SimulateTest, MoreRanksAndLongerStepsTakeLonger) {
  const v1::HardwareProfile profile = CpuProfile(2);
  const auto seconds = [&](const TinyJob& job) {
    return Simulate(CompileTiny(job), "train", profile)->step_seconds;
  };
  EXPECT_LT(seconds({.micro_batches = 1}), seconds({.micro_batches = 3}));
  EXPECT_LT(seconds({.data_parallel = 1, .micro_batches = 2}),
            seconds({.data_parallel = 2, .micro_batches = 2}));
}

}  // namespace
}  // namespace terrace
