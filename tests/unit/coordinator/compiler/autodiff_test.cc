// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/autodiff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "coordinator/compiler/forward.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace::compiler {
namespace {

using kernels::Access;
using kernels::Op;

// The forward and backward nodes of `micro_batches` micro-batches, before any other pass.
class AutodiffTest : public testing::Test {
 protected:
  void Build(const std::string& family, int micro_batches) {
    model_ = TinyModel(family);
    graph_.sequences.push_back({.name = "train"});
    const Parameters parameters(model_, /*with_optimizer=*/false, &graph_);
    ForwardOptions options = {.batch = 2, .sequence = 12, .for_backward = true};
    if (!model_.config.rope.inverse_frequency.empty()) {
      options.rope_table = graph_.Add(
          {.name = "rope", .shape = {12, model_.config.head_dim}, .lifetime = v1::PERSISTENT});
    }
    Builder builder(&graph_, 0);
    for (int i = 0; i < micro_batches; ++i) {
      const size_t begin = nodes().size();
      const Slice tokens = builder.NewValue("tokens", v1::INPUT, kernels::DType::kI32, {24});
      const Slice targets = builder.NewValue("targets", v1::INPUT, kernels::DType::kI32, {24});
      const Slice stats = builder.NewValue("stats", v1::ACTIVATION, kernels::DType::kF32, {2});
      Forward forward(model_, parameters, options, &builder);
      forward.Loss(forward.FinalNorm(forward.Layers(tokens)), targets, stats);
      ASSERT_EQ(AppendBackward(begin, nodes().size(), &gradients_, &builder), absl::OkStatus());
    }
  }

  const std::vector<Node>& nodes() { return graph_.sequences[0].nodes; }

  std::vector<Access> AccessesTo(int value) {
    std::vector<Access> accesses;
    for (const Node& node : nodes()) {
      for (int k = 0; k < static_cast<int>(node.operands.size()); ++k) {
        if (node.operands[k].value == value) accesses.push_back(AccessOf(node, k));
      }
    }
    return accesses;
  }

  int Count(Op op) {
    int count = 0;
    for (const Node& node : nodes()) count += node.compute() != nullptr && node.compute()->op == op;
    return count;
  }

  Model model_;
  Graph graph_;
  ParameterGradients gradients_;
};

TEST_F(AutodiffTest, TheFirstContributionWritesAndLaterOnesUpdate) {
  for (const std::string& family : Families()) {
    graph_ = {};
    gradients_ = {};
    Build(family, 3);
    for (const auto& [weight, gradient] : gradients_.all()) {
      const std::vector<Access> accesses = AccessesTo(gradient);
      ASSERT_GE(accesses.size(), 3u) << graph_.values[gradient].name;
      EXPECT_EQ(accesses[0], Access::kWrite) << graph_.values[gradient].name;
      for (size_t i = 1; i < accesses.size(); ++i) {
        EXPECT_EQ(accesses[i], Access::kUpdate) << graph_.values[gradient].name << " access " << i;
      }
    }
  }
}

TEST_F(AutodiffTest, EveryWeightGetsAGradient) {
  for (const std::string& family : Families()) {
    graph_ = {};
    gradients_ = {};
    Build(family, 1);
    Graph other;
    EXPECT_EQ(gradients_.all().size(), Parameters(model_, false, &other).all().size()) << family;
  }
}

TEST_F(AutodiffTest, EveryOperationKeepsTheRulesOfItsOp) {
  for (const std::string& family : Families()) {
    graph_ = {};
    gradients_ = {};
    Build(family, 2);
    for (const Node& node : nodes()) {
      kernels::OpAttrs attrs = node.compute()->attrs;
      if (auto* loss = std::get_if<kernels::LossAttrs>(&attrs)) loss->chunk_rows = 1;
      EXPECT_EQ(kernels::CheckShapes(node.compute()->op, attrs, ShapesOf(node)), "") << node.text;
    }
  }
}

// A tied table is written by the LM head; an untied one, and positions, must start from zero.
TEST_F(AutodiffTest, OnlyGradientsThatNobodyWritesAreZeroed) {
  Build("qwen3", 2);
  EXPECT_EQ(Count(Op::kFill), 0);
  graph_ = {};
  gradients_ = {};
  Build("llama", 2);
  EXPECT_EQ(Count(Op::kFill), 1);
  graph_ = {};
  gradients_ = {};
  Build("gpt2", 2);
  EXPECT_EQ(Count(Op::kFill), 1);
}

TEST_F(AutodiffTest, GeluAndTheResidualAreFoldedIntoTheirNeighbours) {
  Build("gpt2", 1);
  EXPECT_EQ(Count(Op::kGeluGrad), 0);
  EXPECT_EQ(Count(Op::kAdd), 0);
  int fused = 0;
  for (const Node& node : nodes()) {
    if (node.compute()->op != Op::kMatmul) continue;
    const auto& attrs = std::get<kernels::MatmulAttrs>(node.compute()->attrs);
    fused += attrs.epilogue == kernels::Epilogue::kGeluGrad;
  }
  EXPECT_EQ(fused, 2);
  EXPECT_EQ(Count(Op::kLmHeadLoss), 0);
  EXPECT_EQ(Count(Op::kLmHeadLossGrad), 1);
}

TEST_F(AutodiffTest, TheResidualStreamHasOneGradientBuffer) {
  Build("llama", 1);
  std::set<int> dx;
  for (const Node& node : nodes()) {
    if (node.compute()->op == Op::kRmsNormGrad) dx.insert(node.operands[5].value);
  }
  EXPECT_EQ(dx.size(), 1u);
}

TEST_F(AutodiffTest, RopeIsUndoneByItsInverse) {
  Build("llama", 1);
  int forward = 0, inverse = 0;
  for (const Node& node : nodes()) {
    if (node.compute()->op != Op::kRope) continue;
    (std::get<kernels::RopeAttrs>(node.compute()->attrs).inverse ? inverse : forward) += 1;
  }
  EXPECT_EQ(forward, 2);
  EXPECT_EQ(inverse, 2);
}

TEST_F(AutodiffTest, AnOpWithoutARuleIsNamed) {
  graph_.sequences.push_back({.name = "train"});
  Builder builder(&graph_, 0);
  const Slice x = builder.NewValue("x", v1::ACTIVATION, kernels::DType::kF32, {4});
  builder.Compute(Op::kCast, kernels::NoAttrs{}, {x, x}, "cast");
  const absl::Status status = AppendBackward(0, 1, &gradients_, &builder);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("'cast'"));
}

}  // namespace
}  // namespace terrace::compiler
