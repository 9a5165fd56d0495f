// A job trains on the CUDA backend as on the CPU's: the same program but for its workspaces, real
// kernels on a device that the host plays. One small job; train_all_test.cc has the rest.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/unit/kernels/cuda/simt/fake_device.h"
#include "tests/unit/worker/rank/cuda/job_on_device.h"

namespace terrace {
namespace {

TEST(CudaTrainTest, ATinyGptFollowsTheCpu) {
  constexpr int64_t kSteps = 2;
  simt::ResetDevice({.order = simt::DeviceOptions::Order::kLazy, .memory_bytes = int64_t{2} << 30});
  DeviceJob job{.family = "gpt2", .layout = PlainLayout()};
  const auto cpu = TrainOnDevice(job, kSteps);
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  job.layout.set_device("cuda");
  const auto cuda = TrainOnDevice(job, kSteps);
  ASSERT_TRUE(cuda.ok()) << cuda.status();
  for (int64_t step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(cuda->losses[step] / cpu->losses[step], 1, 1e-5) << step;
    EXPECT_NEAR(cuda->grad_norms[step] / cpu->grad_norms[step], 1, 1e-5) << step;
  }
  EXPECT_NE(cuda->losses[1], cuda->losses[0]) << "the update reaches the weights";
  const TensorError worst = WorstError(*cuda, *cpu);
  EXPECT_LT(worst.error, 1e-4) << worst.tensor;
  EXPECT_EQ(simt::CountsOfDevice().allocations, 0) << "all device memory is given back";
}

}  // namespace
}  // namespace terrace
