// A job trains on the CUDA backend as on the CPU's: the same program but for its workspaces, real
// kernels on a device that the host plays. One small job; train_all_test.cc has the rest.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <utility>

#include "tests/unit/kernels/cuda/simt/fake_device.h"
#include "tests/unit/worker/device/cuda/job_on_device.h"

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

// Two queues have a part: computation, and inputs that come for each micro-batch.
TEST(CudaTrainTest, AStepLaunchedAsOneGraphChangesNoBit) {
  constexpr int64_t kSteps = 3;
  DeviceJob job{.family = "llama", .layout = PlainLayout()};
  job.layout.set_device("cuda");
  job.layout.set_micro_batches(2);
  simt::ResetDevice({.order = simt::DeviceOptions::Order::kLazy, .memory_bytes = int64_t{2} << 30});
  ASSERT_EQ(::setenv("TERRACE_CUDA_GRAPHS", "0", 1), 0);
  const auto launched = TrainOnDevice(job, kSteps);
  ASSERT_EQ(::unsetenv("TERRACE_CUDA_GRAPHS"), 0);
  ASSERT_TRUE(launched.ok()) << launched.status();
  ASSERT_EQ(simt::CountsOfDevice().graph_launches, 0);
  simt::ResetDevice(
      {.order = simt::DeviceOptions::Order::kRandom, .seed = 5, .memory_bytes = int64_t{2} << 30});
  absl::StatusOr<Trained> as_graph;
  {
    const auto made = JobOnDevice::Make(job);
    ASSERT_TRUE(made.ok()) << made.status();
    const v1::Program& program = (*made)->program();
    std::set<v1::StreamKind> kinds;
    for (const v1::Instruction& one : program.sequences(0).instructions())
      kinds.insert(program.streams(static_cast<int>(one.stream())).kind());
    ASSERT_EQ(kinds, (std::set<v1::StreamKind>{v1::COMPUTE, v1::HOST_TO_DEVICE}));
    ASSERT_TRUE((*made)->Prepare().ok());
    as_graph = (*made)->Train(kSteps);
  }
  ASSERT_TRUE(as_graph.ok()) << as_graph.status();
  EXPECT_EQ(simt::CountsOfDevice().graph_launches, kSteps - 1);
  EXPECT_EQ(as_graph->losses, launched->losses);
  EXPECT_EQ(as_graph->grad_norms, launched->grad_norms);
  EXPECT_EQ(as_graph->state, launched->state);
  EXPECT_EQ(simt::CountsOfDevice().graphs, 0) << "all graphs are given back";
}

// On both backends: where a buffer has its bytes is no business of what computes on it.
TEST(CudaTrainTest, PagesAtSecondAddressesChangeNoBit) {
  constexpr int64_t kSteps = 2;
  for (const auto& [device, page_bytes] : {std::pair<const char*, int64_t>{"cpu", 4096},
                                           std::pair<const char*, int64_t>{"cuda", 2 << 20}}) {
    simt::ResetDevice(
        {.order = simt::DeviceOptions::Order::kLazy, .memory_bytes = int64_t{2} << 30});
    DeviceJob job{.family = "llama", .layout = PlainLayout()};
    job.layout.set_device(device);
    const auto contiguous = TrainOnDevice(job, kSteps);
    ASSERT_TRUE(contiguous.ok()) << contiguous.status();
    job.page_bytes = page_bytes;
    const auto pages = TrainOnDevice(job, kSteps);
    ASSERT_TRUE(pages.ok()) << pages.status();
    EXPECT_EQ(pages->losses, contiguous->losses) << device;
    EXPECT_EQ(pages->grad_norms, contiguous->grad_norms) << device;
    EXPECT_EQ(pages->state, contiguous->state) << device;
    EXPECT_EQ(simt::CountsOfDevice().pages, 0) << "all pages are given back";
    EXPECT_EQ(simt::CountsOfDevice().ranges, 0);
  }
}

}  // namespace
}  // namespace terrace
