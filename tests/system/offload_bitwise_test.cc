// Where memory rests changes no bit: losses, gradient norms and weights of jobs whose weights,
// gradients, moments and activations lie on the host or on NVMe equal those of the same job on the
// device.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
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

class OffloadBitwiseTest : public testing::TestWithParam<const char*> {
 protected:
  const RunOptions threads_ = ThreadsOfOneFamily(GetParam());
};

TEST_P(OffloadBitwiseTest, StatesOnAnyTierChangeNothing) {
  const JobData data = DataOf(GetParam());
  const JobResult resident = TrainLayout(data, Resident(), kSteps, kInTurns);
  for (const Tiers& tiers : AllTiers()) {
    ExpectSame(TrainLayout(data, With(Resident(), tiers), kSteps, threads_), resident,
               Describe(tiers));
  }
}

TEST_P(OffloadBitwiseTest, PrecisionAndRecomputeGoWithIt) {
  const JobData data = DataOf(GetParam());
  v1::Layout layout = Resident(1);
  layout.set_precision("bf16");
  const JobResult resident = TrainLayout(data, layout, kSteps, kInTurns);
  layout.set_recompute("block");
  const Tiers nvme = {v1::NVME, v1::NVME, v1::NVME};
  ExpectSame(TrainLayout(data, With(layout, nvme), kSteps, threads_), resident,
             "bf16, block, nvme");
}

TEST_P(OffloadBitwiseTest, WeightsInBf16AreRoundedAlikeOnAnyTier) {
  const JobData data = DataOf(GetParam());
  v1::Layout layout = Resident();
  layout.set_precision("bf16");
  layout.set_stochastic_rounding(true);
  const JobResult resident = TrainLayout(data, layout, kSteps, kInTurns);
  for (const Tiers& tiers : AllTiers()) {
    ExpectSame(TrainLayout(data, With(layout, tiers), kSteps, threads_), resident, Describe(tiers));
  }
}

TEST_P(OffloadBitwiseTest, GradientsInBf16AreAddedAlikeOnAnyTier) {
  const JobData data = DataOf(GetParam());
  v1::Layout layout = Resident();
  layout.set_precision("bf16");
  layout.set_gradient_format("bf16");
  const JobResult resident = TrainLayout(data, layout, kSteps, kInTurns);
  for (const Tiers& tiers : AllTiers()) {
    ExpectSame(TrainLayout(data, With(layout, tiers), kSteps, threads_), resident, Describe(tiers));
  }
}

// Products round weights in f32 to the same 16 bits.
TEST_P(OffloadBitwiseTest, RoundedWeightsChangeNothing) {
  const JobData data = DataOf(GetParam());
  for (const char* precision : {"bf16", "fp16"}) {
    v1::Layout layout = Resident();
    layout.set_precision(precision);
    layout.set_parameter_format("f32");
    const JobResult in_f32 = TrainLayout(data, layout, kSteps, kInTurns);
    layout.set_parameter_format(precision == std::string("bf16") ? "bf16" : "f16");
    ExpectSame(TrainLayout(data, layout, kSteps, threads_), in_f32, precision);
    for (const Tiers& tiers : AllTiers()) {
      ExpectSame(TrainLayout(data, With(layout, tiers), kSteps, threads_), in_f32,
                 absl::StrCat(precision, " ", Describe(tiers)));
    }
  }
}

// They are prefetched, updated and taken back in their format, scales with codes.
TEST_P(OffloadBitwiseTest, MomentsInFewerBitsAreTheSameOnAnyTier) {
  const JobData data = DataOf(GetParam());
  for (const char* format : {"bf16", "int8"}) {
    v1::Layout layout = Resident();
    layout.set_moments_format(format);
    const JobResult resident = TrainLayout(data, layout, kSteps, kInTurns);
    for (const Tiers& tiers : AllTiers()) {
      const JobResult away = TrainLayout(data, With(layout, tiers), kSteps, threads_);
      ExpectSame(away, resident, absl::StrCat(format, " ", Describe(tiers)));
      EXPECT_EQ(away.first_moment, resident.first_moment);
      EXPECT_EQ(away.second_moment, resident.second_moment);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, OffloadBitwiseTest, testing::Values("gpt2", "llama", "qwen3"));

TEST(OffloadBitwiseTest, RanksThatShareTheStatesKeepThemOnAnyTier) {
  const JobData data = DataOf("llama");
  for (const uint32_t zero : {1, 2, 3}) {
    v1::Layout layout = Resident();
    layout.set_data_parallel(2);
    layout.set_zero_stage(zero);
    for (const bool stochastic : {false, true}) {
      layout.set_precision(stochastic ? "bf16" : "fp32");
      layout.set_stochastic_rounding(stochastic);
      const JobResult resident = TrainLayout(data, layout, kSteps, kInTurns);
      for (const v1::Tier tier : {v1::HOST, v1::NVME}) {
        const Tiers tiers = {zero == 3 ? tier : v1::DEVICE, tier, tier};
        ExpectSame(TrainLayout(data, With(layout, tiers), kSteps), resident,
                   absl::StrCat("zero ", zero, " ", Describe(tiers)));
      }
    }
  }
}

TEST(OffloadBitwiseTest, RanksThatShareTheStatesRoundWeightsOnAnyTier) {
  const JobData data = DataOf("llama");
  for (const uint32_t zero : {1, 2, 3}) {
    v1::Layout layout = Resident();
    layout.set_data_parallel(2);
    layout.set_zero_stage(zero);
    layout.set_precision("bf16");
    layout.set_parameter_format("f32");
    const JobResult in_f32 = TrainLayout(data, layout, kSteps, kInTurns);
    layout.set_parameter_format("bf16");
    for (const v1::Tier parameter : {v1::DEVICE, v1::HOST, v1::NVME}) {
      for (const v1::Tier optimizer : {v1::DEVICE, v1::HOST, v1::NVME}) {
        if (parameter > optimizer || (zero < 3 && parameter != v1::DEVICE)) continue;
        const Tiers tiers = {parameter, optimizer, optimizer};
        ExpectSame(TrainLayout(data, With(layout, tiers), kSteps), in_f32,
                   absl::StrCat("zero ", zero, " ", Describe(tiers)));
      }
    }
  }
}

TEST(OffloadBitwiseTest, RanksThatShareTheStatesKeepMomentsInFewerBitsOnAnyTier) {
  const JobData data = DataOf("llama");
  for (const char* format : {"bf16", "int8"}) {
    for (const uint32_t zero : {1, 3}) {
      v1::Layout layout = Resident();
      layout.set_data_parallel(2);
      layout.set_zero_stage(zero);
      layout.set_precision("bf16");
      layout.set_moments_format(format);
      const JobResult resident = TrainLayout(data, layout, kSteps, kInTurns);
      for (const v1::Tier tier : {v1::HOST, v1::NVME}) {
        const Tiers tiers = {zero == 3 ? tier : v1::DEVICE, tier, tier};
        ExpectSame(TrainLayout(data, With(layout, tiers), kSteps), resident,
                   absl::StrCat(format, " zero ", zero, " ", Describe(tiers)));
      }
    }
  }
}

// The shares of a class are handed out by themselves: some masters stay whose weights leave.
TEST(OffloadBitwiseTest, RoundedWeightsMayLeaveWhereTheirMastersStay) {
  JobData data = DataOf("llama");
  for (const uint32_t zero : {0, 3}) {
    for (const double clip : {1.0, 0.0}) {
      data.train.set_clip_grad_norm(static_cast<float>(clip));
      v1::Layout layout = Resident();
      layout.set_precision("bf16");
      layout.set_data_parallel(zero > 0 ? 2 : 1);
      layout.set_zero_stage(zero);
      layout.set_parameter_format("bf16");
      const JobResult resident = TrainLayout(data, layout, kSteps, kInTurns);
      for (const v1::Tier tier : {v1::HOST, v1::NVME}) {
        v1::Layout away = layout;
        v1::TierShares* optimizer = away.mutable_offload()->mutable_optimizer();
        v1::TierShares* parameter = away.mutable_offload()->mutable_parameter();
        optimizer->set_device(0.75);
        parameter->set_device(0.25);
        for (const auto& [shares, part] : {std::pair(optimizer, 0.25), {parameter, 0.75}})
          tier == v1::HOST ? shares->set_host(part) : shares->set_nvme(part);
        ExpectSame(TrainLayout(data, away, kSteps), resident,
                   absl::StrCat("zero ", zero, ", clip ", clip, ", ", v1::Tier_Name(tier)));
      }
    }
  }
}

// Weights are rounded anew when the last pass that reads them has gone.
TEST(OffloadBitwiseTest, RoundedWeightsGoWithUpdatesAtOnceAndRuns) {
  for (const char* family : {"llama", "gpt2"}) {
    JobData data = DataOf(family);
    data.train.set_clip_grad_norm(0);
    for (const uint32_t zero : {0, 3}) {
      v1::Layout layout = Resident();
      layout.set_precision("bf16");
      layout.set_data_parallel(zero > 0 ? 2 : 1);
      layout.set_zero_stage(zero);
      layout.set_schedule("breadth_first");
      layout.set_interleave(3);
      layout.set_parameter_format("f32");
      const JobResult in_f32 = TrainLayout(data, layout, kSteps, kInTurns);
      layout.set_parameter_format("bf16");
      for (const v1::Tier tier : {v1::DEVICE, v1::HOST, v1::NVME}) {
        const Tiers tiers = {tier, tier, tier, tier};
        ExpectSame(TrainLayout(data, With(layout, tiers), kSteps), in_f32,
                   absl::StrCat(family, " zero ", zero, " ", Describe(tiers)));
      }
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
    const JobResult resident = TrainLayout(data, layout, kSteps, kInTurns);
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
    const JobResult resident = TrainLayout(data, layout, kSteps, kInTurns);
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
  const JobResult resident = TrainLayout(data, layout, kSteps, kInTurns);
  for (v1::TierShares* shares : {layout.mutable_offload()->mutable_optimizer(),
                                 layout.mutable_offload()->mutable_parameter(),
                                 layout.mutable_offload()->mutable_gradient()}) {
    shares->set_device(0.2);
    shares->set_host(0.3);
    shares->set_nvme(0.5);
  }
  ExpectSame(TrainLayout(data, layout, kSteps), resident, "shares");
}

// Tiles sum in another order than whole matrices: equal among tiers and under recomputation, close
// to the whole.
class TilesTest : public testing::TestWithParam<const char*> {
 protected:
  // The head and the matrices of the MLP in several tiles, of GPT-2 the product of q, k and v too.
  static JobData Data() {
    const bool llama = GetParam() == std::string("llama");
    return RandomJob(TinyModel(GetParam(), {.vocabulary = 331,
                                            .hidden = llama ? 64 : 128,
                                            .layers = 2,
                                            .intermediate = 300,
                                            .sequence = 16}),
                     /*rows=*/8, /*length=*/16);
  }
  static v1::Layout Tiled(v1::Layout layout) {
    layout.set_tile_bytes(4096);  // tiles are as small as products allow
    return layout;
  }
  static int64_t Products(const JobResult& result) {
    int64_t count = 0;
    for (const v1::Sequence& sequence : result.programs.at(0).sequences()) {
      count += std::count_if(sequence.instructions().begin(), sequence.instructions().end(),
                             [](const auto& i) { return i.compute().op() == "matmul"; });
    }
    return count;
  }
  static void ExpectClose(const JobResult& tiled, const JobResult& whole, const std::string& what) {
    ASSERT_EQ(tiled.losses.size(), whole.losses.size());
    for (size_t i = 0; i < tiled.losses.size(); ++i) {
      EXPECT_NEAR(tiled.losses[i], whole.losses[i], 1e-5 * whole.losses[i]) << what << i;
      EXPECT_NEAR(tiled.grad_norms[i], whole.grad_norms[i], 1e-5 * whole.grad_norms[i]) << what;
    }
  }
};

TEST_P(TilesTest, AreEqualAmongTiersAndCloseToWholeMatrices) {
  const JobData data = Data();
  const JobResult resident = TrainLayout(data, Resident(), kSteps, kInTurns);
  const v1::Layout layout = Tiled(Resident());
  const JobResult host = TrainLayout(data, With(layout, {v1::HOST, v1::HOST, v1::HOST}), kSteps);
  ExpectClose(host, resident, "host");
  EXPECT_GT(Products(host), Products(resident)) << "nothing was tiled";
  for (const char* recompute : {"none", "selective", "block"}) {
    v1::Layout nvme = With(layout, {v1::NVME, v1::NVME, v1::NVME});
    nvme.set_recompute(recompute);
    ExpectSame(TrainLayout(data, nvme, kSteps), host, recompute);
  }
}

TEST_P(TilesTest, AreGatheredOneByOneFromShards) {
  const JobData data = Data();
  v1::Layout layout = Resident();
  layout.set_data_parallel(2);
  layout.set_zero_stage(3);
  const JobResult whole = TrainLayout(data, layout, kSteps, kInTurns);
  layout = Tiled(layout);
  const JobResult tiled = TrainLayout(data, layout, kSteps);
  ExpectClose(tiled, whole, "zero 3");
  for (const auto& [name, gradient] : whole.gradients) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < gradient.size(); ++i) {
      difference += std::pow(tiled.gradients.at(name)[i] - gradient[i], 2);
      size += std::pow(gradient[i], 2);
    }
    EXPECT_LE(std::sqrt(difference), 1e-5 * std::sqrt(size)) << name;
  }
  ExpectSame(TrainLayout(data, With(layout, {v1::HOST, v1::HOST, v1::HOST}), kSteps), tiled,
             "zero 3 on the host");
}

INSTANTIATE_TEST_SUITE_P(Families, TilesTest, testing::Values("gpt2", "llama"));

}  // namespace
}  // namespace terrace
