// What else a job may want of the CUDA backend: other families, bf16 and fp16, states off the
// device, activations that leave and come back, the caching allocator, checkpoints, orders of
// execution. Minutes: every lane of every warp is a fiber.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "tests/unit/coordinator/compiler/tiny_jobs.h"
#include "tests/unit/kernels/cuda/simt/fake_device.h"
#include "tests/unit/kernels/cuda/simt/hopper.h"
#include "tests/unit/worker/device/cuda/job_on_device.h"

namespace terrace {
namespace {

using simt::DeviceOptions;

constexpr int64_t kSteps = 3;
constexpr int64_t kMemory = int64_t{4} << 30;

Trained On(const std::string& device, DeviceJob job) {
  job.layout.set_device(device);
  auto trained = TrainOnDevice(job, kSteps);
  EXPECT_TRUE(trained.ok()) << trained.status();
  return trained.ok() ? *std::move(trained) : Trained();
}

// Relative: of losses and norms; of the state.
void ExpectFollows(const Trained& cuda, const Trained& cpu, double loss_bound, double state_bound,
                   const std::string& what) {
  ASSERT_EQ(cuda.losses.size(), cpu.losses.size()) << what;
  for (size_t step = 0; step < cpu.losses.size(); ++step) {
    EXPECT_NEAR(cuda.losses[step] / cpu.losses[step], 1, loss_bound) << what << " step " << step;
    EXPECT_NEAR(cuda.grad_norms[step] / cpu.grad_norms[step], 1, 10 * loss_bound)
        << what << " step " << step;
  }
  const TensorError worst = WorstError(cuda, cpu);
  EXPECT_LT(worst.error, state_bound) << what << ": " << worst.tensor;
}

v1::Layout Accumulating() {
  v1::Layout layout = PlainLayout();
  layout.set_micro_batches(2);
  return layout;
}

v1::Layout Offloaded(v1::Tier tier) {
  v1::Layout layout = Accumulating();
  PutOn(tier, layout.mutable_offload()->mutable_parameter());
  PutOn(tier, layout.mutable_offload()->mutable_gradient());
  PutOn(tier, layout.mutable_offload()->mutable_optimizer());
  PutOn(tier, layout.mutable_offload()->mutable_activation());
  return layout;
}

TEST(CudaTrainAllTest, EveryFamilyInAllPrecisionsFollowsTheCpu) {
  for (const char* family : {"gpt2", "llama", "mistral", "qwen2", "qwen3"}) {
    simt::ResetDevice({.order = DeviceOptions::Order::kLazy, .memory_bytes = kMemory});
    const DeviceJob fp32{.family = family, .layout = Accumulating()};
    ExpectFollows(On("cuda", fp32), On("cpu", fp32), 1e-5, 1e-3, std::string(family) + " fp32");
    DeviceJob bf16 = fp32;
    bf16.layout.set_precision("bf16");
    // Two backends round in other places. A bias that starts at zero has moved by a few steps of
    // AdamW, whose first go by signs: the worst of them is 0.14 off, of matrices 0.02.
    ExpectFollows(On("cuda", bf16), On("cpu", bf16), 2e-4, 0.2, std::string(family) + " bf16");
    DeviceJob rounded = bf16;
    rounded.layout.set_stochastic_rounding(true);
    ExpectFollows(On("cuda", rounded), On("cpu", rounded), 2e-4, 0.2,
                  std::string(family) + " bf16, weights rounded stochastically");
    DeviceJob fp16 = fp32;
    fp16.layout.set_precision("fp16");
    ExpectFollows(On("cuda", fp16), On("cpu", fp16), 5e-5, 0.2, std::string(family) + " fp16");
  }
}

// The fake device has compute capability 9.0.
TEST(CudaTrainAllTest, AttentionOnWgmmaFollowsTheCpu) {
  simt::ResetDevice({.order = DeviceOptions::Order::kLazy, .memory_bytes = kMemory});
  DeviceJob job{.family = "llama", .layout = Accumulating()};
  job.layout.set_precision("bf16");
  const int64_t before = simt::ProductsStarted();
  ASSERT_EQ(::setenv("TERRACE_CUDA_ATTENTION", "wgmma", 1), 0);
  const Trained cuda = On("cuda", job);
  ASSERT_EQ(::unsetenv("TERRACE_CUDA_ATTENTION"), 0);
  EXPECT_GT(simt::ProductsStarted(), before);
  ExpectFollows(cuda, On("cpu", job), 2e-4, 0.2, "llama bf16");  // as above
}

TEST(CudaTrainAllTest, WhereStatesRestAndWhenTheDeviceWorksChangesNoBit) {
  simt::ResetDevice({.order = DeviceOptions::Order::kLazy, .memory_bytes = kMemory});
  const Trained resident = On("cuda", {.family = "llama", .layout = Accumulating()});
  for (const v1::Tier tier : {v1::HOST, v1::NVME}) {
    const DeviceJob job{.family = "llama", .layout = Offloaded(tier)};
    // The host's AdamW is another kernel: its own CPU run is what it must follow.
    const Trained lazy = On("cuda", job);
    ExpectFollows(lazy, On("cpu", job), 1e-5, 1e-3, v1::Tier_Name(tier));
    ExpectFollows(lazy, resident, 1e-5, 1e-3, v1::Tier_Name(tier));
    for (unsigned seed = 1; seed <= 3; ++seed) {
      simt::ResetDevice(
          {.order = DeviceOptions::Order::kRandom, .seed = seed, .memory_bytes = kMemory});
      const Trained random = On("cuda", job);
      EXPECT_EQ(random.losses, lazy.losses) << v1::Tier_Name(tier) << " seed " << seed;
      EXPECT_EQ(random.state, lazy.state) << v1::Tier_Name(tier) << " seed " << seed;
    }
    simt::ResetDevice({.order = DeviceOptions::Order::kLazy, .memory_bytes = kMemory});
  }
}

TEST(CudaTrainAllTest, TheCachingAllocatorChangesNoBit) {
  simt::ResetDevice({.order = DeviceOptions::Order::kLazy, .memory_bytes = kMemory});
  DeviceJob job{.family = "gpt2", .layout = Offloaded(v1::HOST)};
  const Trained planned = On("cuda", job);
  for (const char* allocator : {"caching", "expandable"}) {
    job.layout.set_allocator(allocator);
    const Trained caching = On("cuda", job);
    EXPECT_EQ(caching.losses, planned.losses) << allocator;
    EXPECT_EQ(caching.state, planned.state) << allocator;
    EXPECT_EQ(simt::CountsOfDevice().pages, 0) << "all pages are given back";
  }
}

// Ranks that share a GPU communicate through the host: collectives on the device's memory, waited
// for by the threads of the host, in both orders of execution.
TEST(CudaTrainAllTest, RanksThatShareAGpuFollowRanksOnCpus) {
  struct Split {
    uint32_t data = 1, zero = 0, tensor = 1;
  };
  for (const Split& split :
       {Split{.data = 2, .zero = 2}, Split{.data = 2, .zero = 3}, Split{.tensor = 2}}) {
    DeviceJob job{.family = "llama", .layout = Accumulating()};
    job.layout.set_data_parallel(split.data);
    job.layout.set_zero_stage(split.zero);
    job.layout.set_tensor_parallel(split.tensor);
    const auto cpu = TrainRanksOnDevice(job, kSteps);
    ASSERT_TRUE(cpu.ok()) << cpu.status();
    job.layout.set_device("cuda");
    for (const DeviceOptions::Order order :
         {DeviceOptions::Order::kLazy, DeviceOptions::Order::kRandom}) {
      simt::ResetDevice({.order = order, .memory_bytes = kMemory});
      const auto cuda = TrainRanksOnDevice(job, kSteps);
      ASSERT_TRUE(cuda.ok()) << cuda.status();
      for (size_t rank = 0; rank < cpu->size(); ++rank)
        ExpectFollows((*cuda)[rank], (*cpu)[rank], 1e-5, 1e-3, absl::StrCat("rank ", rank));
    }
  }
}

// Any backend reads any checkpoint: half of the steps on the GPU, the rest on the CPU.
TEST(CudaTrainAllTest, ACheckpointOfTheGpuGoesOnOnTheCpu) {
  simt::ResetDevice({.order = DeviceOptions::Order::kLazy, .memory_bytes = kMemory});
  DeviceJob job{.family = "qwen3", .layout = Accumulating()};
  const Trained whole = On("cpu", job);
  const std::string folder =
      std::filesystem::temp_directory_path() / absl::StrCat("terrace-cuda-ckpt-", ::getpid());
  job.layout.set_device("cuda");
  auto on_cuda = JobOnDevice::Make(job);
  ASSERT_TRUE(on_cuda.ok()) << on_cuda.status();
  ASSERT_TRUE((*on_cuda)->Prepare().ok());
  ASSERT_TRUE((*on_cuda)->Train(2).ok());
  v1::JobSpec spec = TinySpec(16);
  spec.mutable_model()->set_config_json(TinyConfig("qwen3"));
  const auto written =
      WriteCheckpoint(folder, {.step = 2, .tokens = 1, .spec = &spec}, (*on_cuda)->state(), {});
  ASSERT_TRUE(written.ok()) << written.status();
  job.layout.set_device("cpu");
  auto on_cpu = JobOnDevice::Make(job);
  ASSERT_TRUE(on_cpu.ok()) << on_cpu.status();
  ASSERT_TRUE((*on_cpu)->Prepare().ok());
  const auto header = ReadCheckpoint(written->path, (*on_cpu)->state(), nullptr);
  ASSERT_TRUE(header.ok()) << header.status();
  (*on_cpu)->set_step(header->step);
  const auto rest = (*on_cpu)->Train(kSteps - header->step);
  ASSERT_TRUE(rest.ok());
  EXPECT_NEAR(rest->losses.back() / whole.losses.back(), 1, 1e-5);
  EXPECT_LT(WorstError(*rest, whole).error, 1e-3) << WorstError(*rest, whole).tensor;
  // And back.
  ASSERT_TRUE(ReadCheckpoint(written->path, (*on_cuda)->state(), nullptr).ok());
  (*on_cuda)->set_step(header->step);
  const auto again = (*on_cuda)->Train(kSteps - header->step);
  ASSERT_TRUE(again.ok());
  EXPECT_NEAR(again->losses.back() / whole.losses.back(), 1, 1e-5);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace terrace
