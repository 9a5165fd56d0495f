// A gradient that is not finite, where each is used up as soon as it is final: it changes neither
// its weights nor their moments, all others are updated as if it had been finite, and ranks that
// hold the same still do.
//
// In layer kLayer the weights of the MLP's up projection are zero, so that it adds nothing to the
// loss, whatever the weights around it. Those make the gradient of its first rows overflow, and no
// other gradient.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/system/layout_data.h"

namespace terrace {
namespace {

constexpr int kLayer = 1;
constexpr int64_t kLayers = 4, kHidden = 64, kIntermediate = 96;
constexpr int64_t kBrokenRows = kIntermediate / 2;  // those of one of two tensor-parallel ranks
constexpr char kTable[] = "model.embed_tokens.weight";
constexpr float kLargeInput = 1e15f, kHugeDown = 1e27f;

const std::string& Prefix() {
  static const auto* prefix = new std::string(absl::StrCat("model.layers.", kLayer, "."));
  return *prefix;
}
std::string Up() { return Prefix() + "mlp.up_proj.weight"; }
std::string Down() { return Prefix() + "mlp.down_proj.weight"; }

JobData DataOf(const std::string& family, float down) {
  JobData data = RandomJob(TinyModel(family, {.vocabulary = 331,
                                              .hidden = kHidden,
                                              .layers = kLayers,
                                              .intermediate = kIntermediate,
                                              .sequence = 16}),
                           /*rows=*/16, /*length=*/16);
  data.train.set_clip_grad_norm(0);
  const auto change = [&](const std::string& name, auto by) {
    std::vector<float>& values = data.weights.at(name);
    for (size_t i = 0; i < values.size(); ++i) by(static_cast<int64_t>(i), &values[i]);
  };
  change(Prefix() + "post_attention_layernorm.weight",
         [](int64_t, float* value) { *value = kLargeInput; });
  change(Prefix() + "mlp.gate_proj.weight", [](int64_t, float* value) { *value /= kLargeInput; });
  change(Up(), [](int64_t, float* value) { *value = 0; });
  change(Down(), [down](int64_t i, float* value) {
    if (i % kIntermediate < kBrokenRows) *value *= down;
  });
  return data;
}

v1::Layout LayoutOf(const std::string& schedule, uint32_t micro_batches = 2) {
  v1::Layout layout = MatrixLayout();
  layout.set_schedule(schedule);
  layout.set_micro_batches(micro_batches);
  layout.set_chunk_bytes(3 * 4096);
  if (schedule == "breadth_first") layout.set_interleave(kLayers);
  return layout;
}

// Of one parameter: is it as before the step?
struct Element {
  const JobData& data;
  const JobResult& result;
  const std::string& name;
  size_t i;
  bool Untouched() const {
    return result.weights.at(name)[i] == data.weights.at(name)[i] &&
           result.first_moment.at(name)[i] == 0 && result.second_moment.at(name)[i] == 0;
  }
  bool Is(const JobResult& other) const {
    return result.weights.at(name)[i] == other.weights.at(name)[i] &&
           result.first_moment.at(name)[i] == other.first_moment.at(name)[i] &&
           result.second_moment.at(name)[i] == other.second_moment.at(name)[i];
  }
};

class UpdatesNotFiniteTest : public testing::TestWithParam<const char*> {
 protected:
  void ExpectOneIsLeftOut(const v1::Layout& layout) const {
    const std::string what = Describe(LayoutCase{GetParam(), layout});
    ASSERT_TRUE(UpdatesAtOnce(layout, 0)) << what;
    const JobResult finite =
        TrainLayout(finite_, layout, 1, HasTurns(layout) ? kInTurns : RunOptions{});
    const JobResult broken = TrainLayout(broken_, layout, 1, Threads(layout));
    ASSERT_EQ(broken.losses.size(), 1u) << what;
    EXPECT_EQ(broken.losses, finite.losses) << what;
    EXPECT_TRUE(std::isfinite(finite.grad_norms[0])) << what;
    EXPECT_FALSE(std::isfinite(broken.grad_norms[0])) << what;
    const bool tied = !broken_.weights.contains("lm_head.weight");
    for (const auto& [name, values] : broken.weights) {
      const bool in_layer = name.starts_with(Prefix());
      // A table that stages share is updated when all gradients are known to be finite.
      const bool waits = layout.pipeline_parallel() > 1 && name == kTable && tied;
      size_t untouched = 0;
      for (size_t i = 0; i < values.size(); ++i) {
        const Element element = {broken_, broken, name, i};
        const bool left_out = element.Untouched();
        untouched += left_out;
        const auto at = static_cast<int64_t>(i);
        if (name == Up() && at < kBrokenRows * kHidden) {
          ASSERT_TRUE(left_out) << what << ": " << name << " " << i;
        } else if (name == Down() && at % kIntermediate < kBrokenRows) {
          continue;  // it began elsewhere than that of the other job
        } else if (waits) {
          ASSERT_TRUE(left_out) << what << ": " << name;
        } else {
          ASSERT_TRUE(element.Is(finite) || (in_layer && left_out)) << what << ": " << name;
        }
      }
      if (!in_layer && !waits) {
        EXPECT_LT(untouched, values.size()) << what << ": " << name;
      }
    }
  }

  // Ranks must still hold the same (TrainLayout fails otherwise), and go on.
  void ExpectItGoesOn(const v1::Layout& layout) const {
    constexpr int64_t kSteps = 4;
    const std::string what = Describe(LayoutCase{GetParam(), layout});
    const JobResult broken = TrainLayout(broken_, layout, kSteps, Threads(layout));
    ASSERT_EQ(broken.losses.size(), static_cast<size_t>(kSteps)) << what;
    for (const double loss : broken.losses) EXPECT_TRUE(std::isfinite(loss)) << what;
    EXPECT_NE(broken.losses.back(), broken.losses.front()) << what;
    const std::vector<float>& up = broken.weights.at(Up());
    EXPECT_TRUE(std::all_of(up.begin(), up.begin() + kBrokenRows * kHidden, [](float value) {
      return value == 0;
    })) << what;
  }

  static bool HasTurns(const v1::Layout& layout) { return layout.allocator().empty(); }
  static RunOptions Threads(const v1::Layout& layout) {
    return HasTurns(layout) ? ThreadsOfOneFamily(GetParam()) : RunOptions{};
  }

  void Expect(const v1::Layout& layout) const {
    ExpectOneIsLeftOut(layout);
    ExpectItGoesOn(layout);
  }

  const JobData finite_ = DataOf(GetParam(), 1), broken_ = DataOf(GetParam(), kHugeDown);
};

TEST_P(UpdatesNotFiniteTest, OnOneDevice) {
  for (const char* schedule : {"1f1b", "gpipe", "breadth_first"}) {
    for (const uint32_t micro_batches : {1, 3}) Expect(LayoutOf(schedule, micro_batches));
  }
}

// Nothing at all is updated where one norm is that of all.
TEST_P(UpdatesNotFiniteTest, AStepThatWaitsForTheNormIsLeftOutWhole) {
  JobData data = broken_;
  data.train.set_clip_grad_norm(1);
  for (const char* schedule : {"1f1b", "breadth_first"}) {
    EXPECT_EQ(TrainLayout(data, LayoutOf(schedule), 1).weights, data.weights);
  }
}

TEST_P(UpdatesNotFiniteTest, OnRanksThatShareTheStates) {
  for (const char* schedule : {"1f1b", "breadth_first"}) {
    for (const uint32_t zero : {0, 1, 2, 3}) {
      v1::Layout layout = LayoutOf(schedule);
      layout.set_data_parallel(2);
      layout.set_zero_stage(zero);
      Expect(layout);
    }
  }
  v1::Layout layout = LayoutOf("1f1b");
  layout.set_data_parallel(4);
  layout.set_zero_stage(3);
  layout.set_shard_size(2);
  Expect(layout);
}

TEST_P(UpdatesNotFiniteTest, WhereRanksShareProductsAndSequences) {
  for (const uint32_t zero : {0, 3}) {
    for (const bool sequence_parallel : {false, true}) {
      v1::Layout layout = LayoutOf("1f1b");
      layout.set_tensor_parallel(2);
      layout.set_sequence_parallel(sequence_parallel);
      layout.set_context_parallel(2);
      layout.set_zero_stage(zero);
      Expect(layout);
    }
  }
}

TEST_P(UpdatesNotFiniteTest, OnStagesInRuns) {
  for (const uint32_t zero : {0, 3}) {
    v1::Layout layout = LayoutOf("breadth_first", 4);
    layout.set_pipeline_parallel(2);
    layout.set_interleave(2);
    layout.set_data_parallel(zero == 0 ? 1 : 2);
    layout.set_zero_stage(zero);
    Expect(layout);
  }
}

TEST_P(UpdatesNotFiniteTest, WhereStatesRestOffTheDevice) {
  for (const v1::Tier tier : {v1::HOST, v1::NVME}) {
    for (const char* schedule : {"1f1b", "breadth_first"}) {
      v1::Layout layout = LayoutOf(schedule);
      layout.set_recompute("block");
      v1::Offload& offload = *layout.mutable_offload();
      PutOn(tier, offload.mutable_parameter());
      PutOn(tier, offload.mutable_gradient());
      PutOn(tier, offload.mutable_optimizer());
      PutOn(tier, offload.mutable_activation());
      Expect(layout);
    }
  }
}

TEST_P(UpdatesNotFiniteTest, WhereTheAllocatorGivesOutMemory) {
  for (const char* allocator : {"caching", "expandable"}) {
    v1::Layout layout = LayoutOf("breadth_first");
    layout.set_allocator(allocator);
    Expect(layout);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, UpdatesNotFiniteTest, testing::Values("llama", "qwen3"));

}  // namespace
}  // namespace terrace
