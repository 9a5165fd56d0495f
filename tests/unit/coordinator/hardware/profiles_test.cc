// SPDX-License-Identifier: Apache-2.0
#include "coordinator/hardware/profiles.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

TEST(ProfilesTest, CoresAddUpAndMemoryStopsAtTheSocket) {
  EXPECT_DOUBLE_EQ(CpuProfile(4).f32_flops_per_second(), 2 * CpuProfile(2).f32_flops_per_second());
  EXPECT_DOUBLE_EQ(CpuProfile(64).memory_bytes_per_second(),
                   CpuProfile(128).memory_bytes_per_second());
  EXPECT_GT(CpuProfile(0).f32_flops_per_second(), 0);
  EXPECT_GT(CpuProfile(2, "avx512+amx_bf16").bf16_flops_per_second(),
            CpuProfile(2, "avx512_bf16").bf16_flops_per_second());
  EXPECT_GT(CpuProfile(2, "avx512_bf16").bf16_flops_per_second(),
            CpuProfile(2, "avx512").bf16_flops_per_second());
}

}  // namespace
}  // namespace terrace
