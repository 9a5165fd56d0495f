// SPDX-License-Identifier: Apache-2.0
#include "coordinator/simulator/cache_reuse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "coordinator/simulator/simulate.h"

namespace terrace {
namespace {

using testing::Each;
using testing::ElementsAre;

constexpr int64_t kMiB = int64_t{1} << 20;

// Buffers one behind the other on the device, and instructions that use whole ones.
class CacheReuseTest : public testing::Test {
 protected:
  CacheReuseTest() {
    program_.add_streams()->set_kind(v1::COMPUTE);
    program_.add_arenas()->set_tier(v1::DEVICE);
    program_.add_sequences()->set_name("train");
  }

  uint32_t Buffer(int64_t bytes) {
    v1::Buffer* buffer = program_.add_buffers();
    buffer->set_id(program_.buffers_size() - 1);
    buffer->set_bytes(bytes);
    buffer->set_offset(end_);
    end_ += bytes;
    return buffer->id();
  }

  v1::Instruction* Use(uint32_t buffer, v1::Access access = v1::READ) {
    v1::Instruction* instruction = program_.mutable_sequences(0)->add_instructions();
    instruction->set_id(program_.sequences(0).instructions_size() - 1);
    instruction->mutable_compute()->set_op("fill");
    instruction->mutable_compute()->mutable_fill();
    v1::Operand* operand = instruction->add_operands();
    operand->set_access(access);
    operand->set_buffer(buffer);
    operand->set_dtype(v1::F32);
    operand->add_shape(program_.buffers(static_cast<int>(buffer)).bytes() / 4);
    return instruction;
  }

  std::vector<double> Shares(int64_t cache_bytes) const {
    return CachedShares(program_, program_.sequences(0), cache_bytes);
  }

  v1::Program program_;
  int64_t end_ = 0;
};

TEST_F(CacheReuseTest, AStepThatComesRoundWithinTheCacheFindsAllOfIt) {
  for (int i = 0; i < 12; ++i) Use(Buffer(kMiB));
  EXPECT_THAT(Shares(16 * kMiB), Each(1.0));
  EXPECT_THAT(Shares(8 * kMiB), Each(0.0)) << "each has gone when the step comes to it again";
  EXPECT_THAT(Shares(0), Each(0.0));
}

TEST_F(CacheReuseTest, ALargeStepFindsWhatItHasJustTouched) {
  const uint32_t written = Buffer(kMiB), others = Buffer(12 * kMiB);
  Use(written, v1::WRITE);
  Use(written);
  Use(others);
  Use(written);
  EXPECT_THAT(Shares(8 * kMiB), ElementsAre(1.0, 1.0, 0.0, 0.0))
      << "what is larger than the cache leaves nothing of the others";
}

TEST_F(CacheReuseTest, WhatIsFoundTakesRoomToo) {
  const uint32_t weights = Buffer(2 * kMiB), moments = Buffer(5 * kMiB),
                 gradients = Buffer(3 * kMiB);
  Use(weights);
  Use(moments);
  Use(weights);
  Use(gradients);
  EXPECT_THAT(Shares(8 * kMiB), ElementsAre(1.0, 0.0, 1.0, 0.0))
      << "weights come again within the cache, and with them all are 10 MiB";
}

TEST_F(CacheReuseTest, APartThatIsFoundCountsAsOne) {
  const uint32_t all = Buffer(4 * kMiB), passed_by = Buffer(12 * kMiB);
  Use(passed_by);
  v1::Instruction* first = Use(all);
  first->mutable_operands(0)->set_shape(0, kMiB / 4);
  Use(all);
  EXPECT_THAT(Shares(8 * kMiB), ElementsAre(0.0, 0.0, 0.25));
}

TEST_F(CacheReuseTest, WhatACopyHasWrittenComesFromMemory) {
  const uint32_t fetched = Buffer(kMiB);
  v1::Instruction* copy = Use(fetched, v1::WRITE);
  copy->mutable_copy()->set_kind(v1::TO_DEVICE);
  Use(fetched);
  Use(fetched);
  EXPECT_THAT(Shares(8 * kMiB), ElementsAre(0.0, 0.0, 1.0));
}

TEST_F(CacheReuseTest, WhatADriveHasGoesPastTheCache) {
  program_.add_arenas()->set_tier(v1::NVME);
  program_.mutable_arenas(1)->set_id(1);
  const uint32_t weights = Buffer(kMiB), states = Buffer(12 * kMiB);
  program_.mutable_buffers(static_cast<int>(states))->set_arena(1);
  Use(weights);
  Use(states)->mutable_copy()->set_kind(v1::NVME_LOAD);
  EXPECT_THAT(Shares(8 * kMiB), ElementsAre(1.0, 0.0));
}

// They have no addresses before the step runs.
TEST_F(CacheReuseTest, BuffersThatAnAllocatorPlacesAreHeldApart) {
  program_.set_allocator("caching");
  for (int i = 0; i < 12; ++i) {
    const uint32_t buffer = Buffer(kMiB);
    program_.mutable_buffers(static_cast<int>(buffer))->set_lifetime(v1::STEP);
    program_.mutable_buffers(static_cast<int>(buffer))->set_offset(0);
    Use(buffer);
  }
  EXPECT_THAT(Shares(8 * kMiB), Each(0.0)) << "12 MiB, not one";
  EXPECT_THAT(Shares(16 * kMiB), Each(1.0));
}

TEST_F(CacheReuseTest, AStepIsSimulatedWithTheRatesOfWhatItFinds) {
  const uint32_t buffer = Buffer(kMiB);
  v1::Instruction* norm = Use(buffer);
  norm->mutable_compute()->set_op("squared_norm");
  norm->mutable_compute()->mutable_scale();
  v1::Operand* sum = norm->add_operands();
  sum->set_access(v1::UPDATE);
  sum->set_buffer(Buffer(4096));
  sum->set_dtype(v1::F32);
  sum->add_shape(1);
  v1::HardwareProfile profile;
  v1::KernelRate* rate = profile.add_kernels();
  rate->set_kernel("squared_norm");
  rate->set_precision("fp32");
  rate->set_rows(kMiB / 4);
  rate->set_columns(1);
  rate->set_inner(1);
  rate->set_flops_per_second(1e6);
  const auto seconds = [&] {
    const auto simulation = Simulate(program_, "train", profile);
    EXPECT_TRUE(simulation.ok()) << simulation.status();
    return simulation.ok() ? simulation->step_seconds : 0;
  };
  const double in_memory = seconds();
  EXPECT_GT(in_memory, 0);
  rate->set_cached_flops_per_second(4e6);
  EXPECT_DOUBLE_EQ(seconds(), in_memory) << "a profile that names no cache";
  profile.set_cache_bytes(8 * kMiB);
  EXPECT_NEAR(seconds() / in_memory, 0.25, 1e-9);
  profile.set_cache_bytes(kMiB / 2);
  EXPECT_NEAR(seconds() / in_memory, 1, 1e-4);
}

}  // namespace
}  // namespace terrace
