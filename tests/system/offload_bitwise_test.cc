// Where memory rests changes no bit: losses, gradient norms and weights of jobs whose weights,
// gradients, moments and activations lie on the host or on NVMe equal those of the same job on the
// device.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/system/layout_data.h"

namespace terrace {
namespace {

constexpr int64_t kSteps = 3;

JobData DataOf(const std::string& family) {
  return RandomJob(
      TinyModel(family,
                {.vocabulary = 331, .hidden = 64, .layers = 3, .intermediate = 96, .sequence = 16}),
      /*rows=*/8, /*length=*/16);
}

v1::Layout Resident(uint32_t micro_batches = 2) {
  v1::Layout layout = MatrixLayout();
  layout.set_micro_batches(micro_batches);
  layout.set_chunk_bytes(3 * 4096);
  return layout;
}

struct Tiers {
  v1::Tier parameter = v1::DEVICE, gradient = v1::DEVICE, optimizer = v1::DEVICE,
           activation = v1::DEVICE;
};

v1::Layout With(v1::Layout layout, const Tiers& tiers) {
  PutOn(tiers.parameter, layout.mutable_offload()->mutable_parameter());
  PutOn(tiers.gradient, layout.mutable_offload()->mutable_gradient());
  PutOn(tiers.optimizer, layout.mutable_offload()->mutable_optimizer());
  PutOn(tiers.activation, layout.mutable_offload()->mutable_activation());
  return layout;
}

void ExpectSame(const JobResult& a, const JobResult& b, const std::string& what) {
  ASSERT_EQ(a.losses.size(), static_cast<size_t>(kSteps)) << what;
  EXPECT_EQ(a.losses, b.losses) << what;
  EXPECT_EQ(a.grad_norms, b.grad_norms) << what;
  EXPECT_EQ(a.weights, b.weights) << what;
}

std::string Describe(const Tiers& tiers) {
  return absl::StrCat("parameter ", v1::Tier_Name(tiers.parameter), ", gradient ",
                      v1::Tier_Name(tiers.gradient), ", optimizer ", v1::Tier_Name(tiers.optimizer),
                      ", activation ", v1::Tier_Name(tiers.activation));
}

std::vector<Tiers> AllTiers() {
  std::vector<Tiers> all;
  for (const v1::Tier optimizer : {v1::HOST, v1::NVME}) {
    for (const v1::Tier parameter : {v1::DEVICE, v1::HOST, v1::NVME}) {
      for (const v1::Tier gradient : {v1::DEVICE, v1::HOST, v1::NVME}) {
        if (parameter <= optimizer && gradient <= optimizer)
          all.push_back({parameter, gradient, optimizer});
      }
    }
  }
  return all;
}

class OffloadBitwiseTest : public testing::TestWithParam<const char*> {};

TEST_P(OffloadBitwiseTest, StatesOnAnyTierChangeNothing) {
  const JobData data = DataOf(GetParam());
  const JobResult resident = TrainLayout(data, Resident(), kSteps);
  for (const Tiers& tiers : AllTiers()) {
    ExpectSame(TrainLayout(data, With(Resident(), tiers), kSteps), resident, Describe(tiers));
  }
}

TEST_P(OffloadBitwiseTest, PrecisionAndRecomputeGoWithIt) {
  const JobData data = DataOf(GetParam());
  v1::Layout layout = Resident(1);
  layout.set_precision("bf16");
  const JobResult resident = TrainLayout(data, layout, kSteps);
  layout.set_recompute("block");
  const Tiers nvme = {v1::NVME, v1::NVME, v1::NVME};
  ExpectSame(TrainLayout(data, With(layout, nvme), kSteps), resident, "bf16, block, nvme");
}

INSTANTIATE_TEST_SUITE_P(Families, OffloadBitwiseTest, testing::Values("gpt2", "llama", "qwen3"));

TEST(OffloadBitwiseTest, RanksThatShareTheStatesKeepThemOnAnyTier) {
  const JobData data = DataOf("llama");
  for (const uint32_t zero : {1, 2, 3}) {
    v1::Layout layout = Resident();
    layout.set_data_parallel(2);
    layout.set_zero_stage(zero);
    const JobResult resident = TrainLayout(data, layout, kSteps);
    for (const v1::Tier tier : {v1::HOST, v1::NVME}) {
      const Tiers tiers = {zero == 3 ? tier : v1::DEVICE, tier, tier};
      ExpectSame(TrainLayout(data, With(layout, tiers), kSteps), resident,
                 absl::StrCat("zero ", zero, " ", Describe(tiers)));
    }
  }
}

TEST(OffloadBitwiseTest, OtherWaysToSplitAStepGoWithIt) {
  const JobData data = DataOf("qwen3");
  std::vector<v1::Layout> layouts(3, Resident());
  layouts[0].set_pipeline_parallel(2);
  layouts[0].set_schedule("1f1b");
  layouts[1].set_tensor_parallel(2);
  layouts[2].set_context_parallel(2);
  for (const v1::Layout& layout : layouts) {
    const JobResult resident = TrainLayout(data, layout, kSteps);
    const Tiers tiers = {v1::NVME, v1::HOST, v1::NVME};
    ExpectSame(TrainLayout(data, With(layout, tiers), kSteps), resident, Describe(tiers));
  }
}

TEST(OffloadBitwiseTest, ActivationsLeaveAndComeBack) {
  JobData data = RandomJob(
      TinyModel(
          "llama",
          {.vocabulary = 131, .hidden = 64, .layers = 4, .intermediate = 96, .sequence = 256}),
      /*rows=*/4, /*length=*/256);
  v1::Layout layout = Resident();
  for (const char* recompute : {"none", "block"}) {
    layout.set_recompute(recompute);
    const JobResult resident = TrainLayout(data, layout, kSteps);
    for (const v1::Tier tier : {v1::HOST, v1::NVME}) {
      const JobResult moved = TrainLayout(data, With(layout, {.activation = tier}), kSteps);
      ExpectSame(moved, resident, recompute);
      ASSERT_EQ(moved.programs.size(), 1u);
      EXPECT_GT(moved.programs[0].arenas_size(), 1);
    }
  }
}

TEST(OffloadBitwiseTest, SharesOfAClassLieOnSeveralTiers) {
  const JobData data = DataOf("gpt2");
  v1::Layout layout = Resident();
  const JobResult resident = TrainLayout(data, layout, kSteps);
  for (v1::TierShares* shares : {layout.mutable_offload()->mutable_optimizer(),
                                 layout.mutable_offload()->mutable_parameter(),
                                 layout.mutable_offload()->mutable_gradient()}) {
    shares->set_device(0.2);
    shares->set_host(0.3);
    shares->set_nvme(0.5);
  }
  ExpectSame(TrainLayout(data, layout, kSteps), resident, "shares");
}

// The tiled head is another way to sum than the fused one: equal among tiers, close to the fused.
TEST(OffloadBitwiseTest, ATiledHeadIsCloseToTheFusedOne) {
  const JobData data = DataOf("llama");
  const JobResult resident = TrainLayout(data, Resident(), kSteps);
  v1::Layout layout = Resident();
  layout.set_tile_bytes(256 * 64 * 4);
  const JobResult host = TrainLayout(data, With(layout, {v1::HOST, v1::HOST, v1::HOST}), kSteps);
  const JobResult nvme = TrainLayout(data, With(layout, {v1::NVME, v1::NVME, v1::NVME}), kSteps);
  ExpectSame(host, nvme, "host and nvme");
  ASSERT_EQ(host.losses.size(), resident.losses.size());
  for (size_t i = 0; i < host.losses.size(); ++i) {
    EXPECT_NEAR(host.losses[i], resident.losses[i], 1e-5 * resident.losses[i]) << "step " << i;
  }
}

}  // namespace
}  // namespace terrace
