// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/buckets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "tests/unit/coordinator/compiler/tiny_stage.h"

namespace terrace::compiler {
namespace {

// A model of vectors only: one weight a layer, of the given role and number of elements.
Model VectorModel(const std::vector<std::pair<TensorRole, int64_t>>& weights) {
  Model model = TinyModel("llama");
  model.config.layers = static_cast<int64_t>(weights.size());
  model.tensors.clear();
  for (const auto& [role, elements] : weights) {
    const auto layer = static_cast<int64_t>(model.tensors.size());
    model.tensors.push_back(
        {.name = "w" + std::to_string(layer), .shape = {elements}, .role = role, .layer = layer});
  }
  return model;
}

// Gradients written one after the other, as a backward pass does: those of the last layer first.
class BucketsTest : public testing::Test {
 protected:
  void Write(const std::vector<int64_t>& elements) {
    std::vector<std::pair<TensorRole, int64_t>> weights;
    for (int64_t n : elements) weights.emplace_back(TensorRole::kAttentionNorm, n);
    Write(weights, TinyLayout({}));
  }
  // `weights` from the last layer on.
  void Write(const std::vector<std::pair<TensorRole, int64_t>>& weights, const v1::Layout& layout) {
    Start(weights, layout);
    for (size_t i = 0; i < weights.size(); ++i) WriteOne(weights[i].first, i);
  }
  void Start(std::vector<std::pair<TensorRole, int64_t>> weights, const v1::Layout& layout) {
    std::reverse(weights.begin(), weights.end());
    stage_ = std::make_unique<TinyStage>(VectorModel(weights), layout);
    stage_->graph.sequences.push_back({.name = "train"});
    order_.resize(weights.size());
  }
  // Of the layer that is number `index` from the end.
  void WriteOne(TensorRole role, size_t index) {
    Builder builder(&stage_->graph, 0);
    bool first = false;
    const Slice weight = WeightOf(*stage_, role, static_cast<int>(order_.size() - 1 - index));
    const Slice gradient = gradients().Of(weight, &builder, &first);
    builder.Compute(kernels::Op::kFill, kernels::FillAttrs{}, {gradient}, "write");
    order_[index] = gradient.value;
  }
  std::vector<Bucket> Make(int64_t bytes) {
    return MakeBuckets(stage_->parameters, gradients(), bytes, 0, &stage_->graph);
  }
  ParameterGradients& gradients() { return stage_->gradients.Of(0, 0); }
  const Value& value(int index) const { return stage_->graph.values[index]; }
  // The value that holds the gradient of layer number `index` from the end.
  int BucketOf(size_t index) const { return value(order_[index]).inside; }

  std::unique_ptr<TinyStage> stage_;
  std::vector<int> order_;  // gradient values from the last layer on
};

TEST_F(BucketsTest, GradientsFillBucketsInTheOrderOfABackwardPass) {
  Write({10, 20, 30, 40});
  const std::vector<Bucket> buckets = Make(60 * 4);
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(value(buckets[0].value).elements(), 60);
  EXPECT_EQ(value(buckets[1].value).elements(), 40);
  EXPECT_EQ(buckets[0].last_writer, 2u);
  EXPECT_EQ(buckets[1].last_writer, 3u);
}

// A schedule that puts some off may not change how ranks add them.
TEST_F(BucketsTest, GradientsLieInTheSamePlacesInWhateverOrderTheyAreFinished) {
  const auto norm = TensorRole::kAttentionNorm;
  Start({{norm, 10}, {norm, 20}, {norm, 30}, {norm, 40}}, TinyLayout({}));
  for (const size_t index : {3, 1, 0, 2}) WriteOne(norm, index);
  const std::vector<Bucket> buckets = Make(60 * 4);
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(value(buckets[0].value).elements(), 40);  // the first that is whole
  EXPECT_EQ(buckets[0].last_writer, 0u);
  EXPECT_EQ(buckets[0].number, 1);
  EXPECT_EQ(buckets[1].last_writer, 3u);
  EXPECT_EQ(buckets[1].number, 0);
  EXPECT_EQ(value(order_[0]).inside_offset, 0);
  EXPECT_EQ(value(order_[1]).inside_offset, 10);
  EXPECT_EQ(value(order_[2]).inside_offset, 30);
  EXPECT_EQ(value(order_[3]).inside_offset, 0);
}

TEST_F(BucketsTest, GradientsLieWithoutGaps) {
  Write({7, 5, 3});
  const std::vector<Bucket> buckets = Make(1 << 20);
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_EQ(value(order_[0]).inside_offset, 0);
  EXPECT_EQ(value(order_[1]).inside_offset, 7);
  EXPECT_EQ(value(order_[2]).inside_offset, 12);
  EXPECT_EQ(value(buckets[0].value).elements(), 15);
}

TEST_F(BucketsTest, ALargeGradientHasABucketOfItsOwn) {
  Write({10, 500, 10});
  const std::vector<Bucket> buckets = Make(100 * 4);
  EXPECT_EQ(buckets.size(), 3u);
  EXPECT_NE(BucketOf(0), BucketOf(1));
  EXPECT_NE(BucketOf(1), BucketOf(2));
}

// What tensor-parallel ranks must sum cannot be in one message with what they must not.
TEST_F(BucketsTest, ABucketHoldsGradientsOfOneKindOfSum) {
  v1::Layout layout = TinyLayout({});
  layout.set_tensor_parallel(2);
  layout.set_sequence_parallel(true);
  const auto whole = std::pair(TensorRole::kAttentionNorm, int64_t{10});
  const auto split = std::pair(TensorRole::kMlpUpBias, int64_t{10});
  Write({whole, split, whole, split}, layout);
  const std::vector<Bucket> buckets = Make(1 << 20);
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(BucketOf(0), BucketOf(2));
  EXPECT_EQ(BucketOf(1), BucketOf(3));
  EXPECT_TRUE(buckets[0].sums.tensor);
  EXPECT_EQ(buckets[0].last_writer, 2u);
  EXPECT_EQ(value(buckets[0].value).elements(), 20);
  EXPECT_FALSE(buckets[1].sums.tensor);
  EXPECT_EQ(buckets[1].last_writer, 3u);
  EXPECT_EQ(value(buckets[1].value).elements(), 10);
}

TEST(BucketsOfProgramTest, TheBucketsOfAJobHoldEveryGradientOnce) {
  for (const TinyJob& job : TinyJobs()) {
    const v1::Program program = CompileTiny(job);
    std::map<uint32_t, int64_t> used;
    int64_t parameters = 0;
    for (const v1::Instruction& instruction : SequenceOf(program, "train").instructions()) {
      if (instruction.compute().op() != "update") continue;
      const int64_t elements = instruction.operands(0).shape(0);
      // What may rest off the device takes whole pages; no vector here is as long as a page.
      const int64_t held = elements < 1024 ? elements : (elements + 1023) / 1024 * 1024;
      used[instruction.operands(0).buffer()] += held * 4;
      parameters += elements;
    }
    for (const auto& [buffer, bytes] : used) {
      EXPECT_EQ(program.buffers(buffer).class_(), v1::GRADIENT);
      EXPECT_EQ(program.buffers(buffer).bytes(), bytes) << Describe(job);
    }
    EXPECT_EQ(parameters, TinyModel(job.family).Parameters()) << Describe(job);
  }
}

}  // namespace
}  // namespace terrace::compiler
