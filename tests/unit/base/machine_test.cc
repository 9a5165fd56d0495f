// SPDX-License-Identifier: Apache-2.0
#include "base/machine.h"

#include <gtest/gtest.h>

#include <string>

namespace terrace {
namespace {

TEST(MachineTest, TheHashTellsHardwareAndVersionsApart) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  const Machine machine = {
      .processor = "Fast", .flags = "avx2 fma", .cores = 8, .memory_bytes = 64 * kGiB};
  const std::string hash = MachineHash(machine, "1.0");
  EXPECT_EQ(hash.size(), 16);
  Machine other = machine;
  other.processor = "Slow";
  EXPECT_NE(MachineHash(other, "1.0"), hash);
  other = machine;
  other.flags = "avx2";
  EXPECT_NE(MachineHash(other, "1.0"), hash);
  other = machine;
  other.cores = 4;
  EXPECT_NE(MachineHash(other, "1.0"), hash);
  other = machine;
  other.memory_bytes = 32 * kGiB;
  EXPECT_NE(MachineHash(other, "1.0"), hash);
  EXPECT_NE(MachineHash(machine, "1.1"), hash);
  // A kernel that keeps some more for itself is the same machine.
  other = machine;
  other.memory_bytes -= kGiB / 4;
  EXPECT_EQ(MachineHash(other, "1.0"), hash);
}

TEST(MachineTest, ThisMachineHasANameAndCores) {
  const Machine machine = ThisMachine();
  EXPECT_FALSE(machine.processor.empty());
  EXPECT_GE(machine.cores, 1);
  EXPECT_GT(machine.memory_bytes, 0);
}

}  // namespace
}  // namespace terrace
