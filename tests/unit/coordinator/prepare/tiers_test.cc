// Jobs whose memory rests on several tiers: what is chosen, what is reported, what is refused.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "coordinator/hardware/profiles.h"
#include "coordinator/model/presets.h"
#include "coordinator/prepare/evaluate.h"
#include "coordinator/prepare/offload_report.h"
#include "coordinator/prepare/prepare.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// A model large enough that its states matter beside what is outside the arenas.
v1::JobSpec Gpt2() {
  v1::JobSpec spec = TinySpec();
  spec.mutable_model()->set_config_json(std::string(FindPreset("gpt2")->config_json));
  spec.mutable_model()->set_attention("config");
  spec.mutable_data()->set_sequence_length(128);
  spec.mutable_train()->set_precision("bf16");
  spec.mutable_train()->set_global_batch(1);
  spec.clear_layout();
  spec.mutable_layout()->set_zero(-1);
  spec.mutable_layout()->set_sequence_parallel(-1);
  return spec;
}

Budget Mib(int64_t device) {
  return {.ranks = 1,
          .threads_per_rank = 2,
          .device_memory_bytes = device << 20,
          .profile = CpuProfile(2)};
}

TEST(TiersTest, WhatDoesNotFitTheDeviceGoesToTheTiersOffered) {
  v1::JobSpec spec = Gpt2();
  spec.mutable_resources()->set_host_memory(int64_t{4} << 30);
  const auto prepared = Prepare(spec, Mib(1300));
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const v1::Plan& plan = prepared->plan;
  EXPECT_TRUE(plan.layout().has_offload());
  ASSERT_EQ(plan.memory_size(), 2);
  EXPECT_EQ(plan.memory(0).tier(), v1::DEVICE);
  EXPECT_EQ(plan.memory(1).tier(), v1::HOST);
  EXPECT_EQ(plan.memory(1).limit_bytes(), int64_t{4} << 30);
  EXPECT_EQ(prepared->programs[0].host_limit_bytes(), int64_t{4} << 30);
  for (const v1::StageMemory& memory : plan.memory()) {
    int64_t sum = 0;
    for (const v1::MemoryLine& line : memory.lines()) {
      EXPECT_EQ(line.tier(), memory.tier());
      sum += line.bytes();
    }
    EXPECT_EQ(sum, memory.arena_bytes() + memory.external_bytes());
    EXPECT_LE(sum, memory.limit_bytes());
  }
  EXPECT_GT(plan.break_even_tokens(), 0);
  EXPECT_GT(plan.time().exposed_offload_seconds(), 0);
  EXPECT_FALSE(plan.has_nvme());
}

TEST(TiersTest, WhatFitsTheDeviceStaysThere) {
  v1::JobSpec spec = Gpt2();
  spec.mutable_resources()->set_host_memory(int64_t{4} << 30);
  const auto prepared = Prepare(spec, Mib(8000));
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_FALSE(prepared->plan.layout().has_offload());
  EXPECT_EQ(prepared->plan.break_even_tokens(), 0);
}

v1::JobSpec OnNvme() {
  v1::JobSpec spec = Gpt2();
  spec.mutable_resources()->mutable_nvme()->add_paths("/mnt/nvme");
  spec.mutable_layout()->mutable_offload()->mutable_optimizer()->set_nvme(1);
  return spec;
}

TEST(TiersTest, ThePlanNamesWhatNvmeReadsAndWritesAndHowLongDrivesLast) {
  v1::JobSpec spec = OnNvme();
  spec.mutable_resources()->mutable_nvme()->set_endurance_bytes(3e15);
  const auto prepared = Prepare(spec, Mib(8000));
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const v1::NvmePlan& nvme = prepared->plan.nvme();
  // Both moments of nearly every parameter, once each way.
  const double moments = 8.0 * prepared->plan.model().parameters();
  EXPECT_NEAR(nvme.write_bytes_per_step() / moments, 1, 0.01);
  EXPECT_NEAR(nvme.read_bytes_per_step() / moments, 1, 0.01);
  EXPECT_DOUBLE_EQ(nvme.write_bytes_per_day(),
                   nvme.write_bytes_per_step() * 86400.0 / prepared->plan.time().step_seconds());
  EXPECT_DOUBLE_EQ(nvme.drive_life_days(), 3e15 / nvme.write_bytes_per_day());
}

// In a loop too weights are read for every micro-batch, moments once a step.
TEST(TiersTest, ALoopReadsWeightsForEveryMicroBatchAndMomentsOnce) {
  v1::JobSpec spec = OnNvme();
  spec.mutable_train()->set_global_batch(32);
  spec.mutable_layout()->set_micro_batch(1);
  spec.mutable_layout()->set_schedule("1f1b");
  spec.mutable_layout()->mutable_offload()->mutable_parameter()->set_nvme(1);
  const auto looped = Prepare(spec, Mib(8000));
  ASSERT_TRUE(looped.ok()) << looped.status();
  ASSERT_GT(looped->programs[0].sequences(0).loops_size(), 0);
  spec.mutable_train()->set_global_batch(16);
  const auto straight = Prepare(spec, Mib(8000));
  ASSERT_TRUE(straight.ok()) << straight.status();
  ASSERT_EQ(straight->programs[0].sequences(0).loops_size(), 0);
  const v1::NvmePlan &many = looped->plan.nvme(), &few = straight->plan.nvme();
  EXPECT_EQ(many.write_bytes_per_step(), few.write_bytes_per_step());
  const double weights = 2.0 * looped->plan.model().parameters();
  EXPECT_GT(few.read_bytes_per_step(), 16 * weights);
  EXPECT_GT(many.read_bytes_per_step() - few.read_bytes_per_step(), 16 * weights);
}

TEST(TiersTest, APlanThatWearsTheDrivesOutTooSoonIsRefused) {
  v1::JobSpec spec = OnNvme();
  spec.mutable_resources()->mutable_nvme()->set_endurance_bytes(1e12);
  spec.mutable_resources()->mutable_nvme()->set_min_drive_life_days(365);
  const auto prepared = Prepare(spec, Mib(8000));
  EXPECT_EQ(prepared.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(prepared.status().message()),
      AllOf(HasSubstr("min_drive_life_days is 365"), HasSubstr("TB a day"),
            HasSubstr("layout.offload host"), Not(HasSubstr(" 0 days")), Not(HasSubstr(" 0.0 "))));
}

// A host smaller than the buffers that copies pass through: nothing placed elsewhere helps.
TEST(TiersTest, AHostTooSmallForItsStagingBuffersIsToldSo) {
  v1::JobSpec spec = OnNvme();
  *spec.mutable_layout()->mutable_offload()->mutable_gradient() =
      spec.layout().offload().optimizer();
  spec.mutable_resources()->set_host_memory(int64_t{32} << 20);
  const auto prepared = Prepare(spec, Mib(2600));
  ASSERT_EQ(prepared.status().code(), absl::StatusCode::kResourceExhausted) << prepared.status();
  EXPECT_THAT(std::string(prepared.status().message()),
              AllOf(HasSubstr("resources.host_memory of at least "),
                    HasSubstr("the buffers that copies pass through alone take "),
                    HasSubstr("less with a layout.chunk_bytes below 8388608"),
                    Not(HasSubstr("resources.device_memory of at least"))));
}

// MiB that a message names behind some words.
double MibBehind(const std::string& message, const std::string& words) {
  std::smatch found;
  const std::regex pattern(words + " ([0-9.]+) (KiB|MiB|GiB)");
  if (!std::regex_search(message, found, pattern)) return -1;
  const double unit = found[2] == "KiB" ? 1.0 / 1024 : found[2] == "MiB" ? 1 : 1024;
  return std::stod(found[1]) * unit;
}

// Buffers that have the same bytes one after the other do not take them twice.
TEST(TiersTest, StagingBuffersTakeNoMoreThanTheHostThatIsAskedFor) {
  v1::JobSpec spec = OnNvme();
  for (v1::TierShares* shares : {spec.mutable_layout()->mutable_offload()->mutable_gradient(),
                                 spec.mutable_layout()->mutable_offload()->mutable_parameter()})
    *shares = spec.layout().offload().optimizer();
  spec.mutable_resources()->set_host_memory(int64_t{1} << 20);
  const auto prepared = Prepare(spec, Mib(2600));
  ASSERT_EQ(prepared.status().code(), absl::StatusCode::kResourceExhausted) << prepared.status();
  const std::string message(prepared.status().message());
  const double asked = MibBehind(message, "resources.host_memory of at least");
  const double taken = MibBehind(message, "buffers that copies pass through alone take");
  EXPECT_GT(taken, 1) << message;
  EXPECT_LE(taken, asked) << message;
}

// What NVMe holds is what neither the device nor the host has room for.
TEST(TiersTest, TheDeviceIsFilledBeforeNvmeIs) {
  v1::JobSpec spec = Gpt2();
  spec.mutable_resources()->mutable_nvme()->add_paths("/mnt/nvme");
  spec.mutable_resources()->set_host_memory(int64_t{400} << 20);
  const auto prepared = Prepare(spec, Mib(1700));
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const v1::Offload& offload = prepared->plan.layout().offload();
  EXPECT_GT(offload.optimizer().nvme(), 0);
  EXPECT_LT(offload.optimizer().nvme(), 1);
  EXPECT_GT(offload.optimizer().device(), 0);
  const v1::StageMemory& device = prepared->plan.memory(0);
  EXPECT_GT(static_cast<double>(device.arena_bytes() + device.external_bytes()),
            0.85 * static_cast<double>(device.limit_bytes()));
}

TEST(TiersTest, SlowedNvmeIsPlannedForAsSlow) {
  v1::JobSpec spec = OnNvme();
  const auto fast = Prepare(spec, Mib(8000));
  spec.mutable_resources()->mutable_nvme()->set_bytes_per_second(100'000'000);
  const auto slow = Prepare(spec, Mib(8000));
  ASSERT_TRUE(fast.ok() && slow.ok());
  const double stream = static_cast<double>(slow->plan.nvme().write_bytes_per_step()) / 1e8;
  EXPECT_GE(slow->plan.time().step_seconds(), stream);
  EXPECT_GT(slow->plan.break_even_tokens(), fast->plan.break_even_tokens());
  EXPECT_THAT(slow->plan.binding_constraint(), HasSubstr("NVMe"));
}

TEST(TiersTest, ATierThatIsTooSmallIsNamed) {
  v1::JobSpec spec = Gpt2();
  spec.mutable_layout()->mutable_offload()->mutable_optimizer()->set_host(1);
  spec.mutable_resources()->set_host_memory(int64_t{64} << 20);
  const auto prepared = Prepare(spec, Mib(8000));
  EXPECT_EQ(prepared.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(prepared.status().message()), HasSubstr("of 64.0 MiB host memory"));
}

TEST(TiersTest, TheHostIsProposedBeforeDigitsAreGivenUp) {
  v1::JobSpec spec = Gpt2();
  spec.mutable_train()->set_precision("fp32");
  const auto prepared = Prepare(spec, Mib(1300));
  EXPECT_EQ(prepared.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(prepared.status().message()),
              AllOf(HasSubstr("the cheapest change that fits: "),
                    HasSubstr("layout.offload.optimizer host"), HasSubstr("host "),
                    Not(HasSubstr("train.precision"))));
}

}  // namespace
}  // namespace terrace
