// The tokens from which a plan says that its offload hardly costs anything, against steps of so
// many tokens and of fewer, simulated with and without the offload.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <ostream>
#include <string>

#include "coordinator/hardware/profiles.h"
#include "coordinator/prepare/prepare.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace {
namespace {

constexpr int64_t kSequence = 16;

struct Case {
  std::string name;
  v1::Offload offload;
  bool shared_cores = true;
  int64_t nvme_bytes_per_second = 0;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

v1::Offload Away(v1::Tier states, v1::Tier optimizer) {
  v1::Offload offload;
  const auto put = [](v1::TierShares* shares, v1::Tier tier) {
    if (tier == v1::HOST) shares->set_host(1);
    if (tier == v1::NVME) shares->set_nvme(1);
  };
  put(offload.mutable_parameter(), states);
  put(offload.mutable_gradient(), states);
  put(offload.mutable_optimizer(), optimizer);
  return offload;
}

// A Llama of 3 million parameters, whose links are slow beside its computation.
v1::JobSpec SpecOf(const Case& c, int64_t batch, bool offloaded) {
  v1::JobSpec spec = TinySpec();
  spec.mutable_model()->set_config_json(
      R"({"model_type": "llama", "vocab_size": 256, "hidden_size": 256, "num_hidden_layers": 4,
          "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 768,
          "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
          "hidden_act": "silu", "tie_word_embeddings": false})");
  spec.mutable_data()->set_sequence_length(kSequence);
  spec.mutable_train()->set_global_batch(batch);
  spec.mutable_train()->set_precision("fp32");
  spec.clear_layout();
  v1::LayoutSpec* layout = spec.mutable_layout();
  layout->set_dp(1);
  layout->set_micro_batch(static_cast<uint32_t>(batch));
  layout->set_recompute("block");
  layout->set_sequence_parallel(-1);
  if (offloaded) *layout->mutable_offload() = c.offload;
  spec.mutable_resources()->set_host_memory(int64_t{4} << 30);
  spec.mutable_resources()->mutable_nvme()->add_paths("/mnt/nvme");
  spec.mutable_resources()->mutable_nvme()->set_bytes_per_second(c.nvme_bytes_per_second);
  return spec;
}

v1::Plan PlanOf(const Case& c, int64_t batch, bool offloaded) {
  Budget budget = {.threads_per_rank = 2, .profile = CpuProfile(2)};
  budget.profile.set_shared_cores(c.shared_cores);
  budget.profile.set_wake_seconds(50e-6);
  if (!c.shared_cores) {  // links to the host as slow as those of a large device are to it
    budget.profile.set_to_device_bytes_per_second(0.2e9);
    budget.profile.set_to_host_bytes_per_second(0.2e9);
    budget.profile.set_host_memory_bytes_per_second(1e9);
  }
  const auto prepared = Prepare(SpecOf(c, batch, offloaded), budget);
  EXPECT_TRUE(prepared.ok()) << prepared.status();
  return prepared->plan;
}

// Of the resident speed, at so many tokens a step.
double Kept(const Case& c, double tokens) {
  const auto batch = static_cast<int64_t>(std::ceil(tokens / kSequence));
  return PlanOf(c, batch, false).time().step_seconds() /
         PlanOf(c, batch, true).time().step_seconds();
}

class BreakEvenTest : public testing::TestWithParam<Case> {};

TEST_P(BreakEvenTest, FromThereOnNineTenthsOfTheResidentSpeedAreLeft) {
  const Case& c = GetParam();
  const double named = PlanOf(c, 128, true).break_even_tokens();
  ASSERT_GT(named, 0);
  for (const double times : {1.0, 1.5, 4.0}) EXPECT_GE(Kept(c, times * named), 0.9) << times;
}

// It is no number to be safe with: well below it the speed is lost.
TEST_P(BreakEvenTest, AtAFifthOfItTheyAreNot) {
  const Case& c = GetParam();
  const double named = PlanOf(c, 128, true).break_even_tokens();
  ASSERT_GE(named / 5, kSequence) << "no step is that short";
  EXPECT_LT(Kept(c, named / 5), 0.9);
}

// The number is of the job, not of the batch that was asked for.
TEST_P(BreakEvenTest, TheBatchThatIsPlannedHardlyMatters) {
  const Case& c = GetParam();
  const double small = PlanOf(c, 32, true).break_even_tokens();
  const double large = PlanOf(c, 512, true).break_even_tokens();
  EXPECT_NEAR(small / large, 1, 0.25) << small << " and " << large;
}

INSTANTIATE_TEST_SUITE_P(
    Tiers, BreakEvenTest,
    testing::Values(Case{"OptimizerOnTheHost", Away(v1::DEVICE, v1::HOST)},
                    Case{"AllOnTheHost", Away(v1::HOST, v1::HOST)},
                    Case{"AllOnSlowNvme", Away(v1::NVME, v1::NVME), true, 150'000'000},
                    Case{"OptimizerBehindALink", Away(v1::DEVICE, v1::HOST), false},
                    Case{"AllBehindALink", Away(v1::HOST, v1::HOST), false},
                    Case{"AllOnNvmeBehindALink", Away(v1::NVME, v1::NVME), false, 150'000'000}),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

}  // namespace
}  // namespace terrace
