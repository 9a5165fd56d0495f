// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/autodiff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "tests/unit/coordinator/compiler/tiny_stage.h"

namespace terrace::compiler {
namespace {

using kernels::Access;
using kernels::Op;

// The forward and backward nodes of `micro_batches` micro-batches, before any other pass.
class AutodiffTest : public testing::Test {
 protected:
  void Build(const std::string& family, int micro_batches) {
    stage_ = std::make_unique<TinyStage>(TinyJob{.family = family});
    stage_->RunMicroBatches(micro_batches);
  }

  const std::vector<Node>& nodes() { return stage_->nodes(); }
  const std::map<int, int>& gradients() { return stage_->gradients.all().at(0)->by_parameter(); }
  const std::string& NameOf(int value) { return stage_->graph.values[value].name; }

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
    return static_cast<int>(std::count_if(nodes().begin(), nodes().end(),
                                          [op](const Node& node) { return IsOp(node, op); }));
  }

  std::unique_ptr<TinyStage> stage_;
};

TEST_F(AutodiffTest, TheFirstContributionWritesAndLaterOnesUpdate) {
  for (const std::string& family : Families()) {
    Build(family, 3);
    for (const auto& [parameter, gradient] : gradients()) {
      const std::vector<Access> accesses = AccessesTo(gradient);
      ASSERT_GE(accesses.size(), 3u) << NameOf(gradient);
      EXPECT_EQ(accesses[0], Access::kWrite) << NameOf(gradient);
      for (size_t i = 1; i < accesses.size(); ++i) {
        EXPECT_EQ(accesses[i], Access::kUpdate) << NameOf(gradient) << " access " << i;
      }
    }
  }
}

TEST_F(AutodiffTest, EveryWeightGetsAGradient) {
  for (const std::string& family : Families()) {
    Build(family, 1);
    EXPECT_EQ(gradients().size(), stage_->parameters.all().size()) << family;
  }
}

TEST_F(AutodiffTest, EveryOperationKeepsTheRulesOfItsOp) {
  for (const std::string& family : Families()) {
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
  Build("llama", 2);
  EXPECT_EQ(Count(Op::kFill), 1);
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
  TinyStage stage({.family = "llama"});
  stage.graph.sequences.push_back({.name = "train"});
  Builder builder(&stage.graph, 0);
  Segment segment;
  builder.record = &segment.nodes;
  const Slice x = builder.NewValue("x", v1::ACTIVATION, kernels::DType::kF32, {4});
  builder.Compute(Op::kAdd, kernels::NoAttrs{}, {x, x}, "add");
  builder.record = nullptr;
  BackwardPass pass(&stage.gradients.Of(0, 0), /*put_off_weights=*/false, &builder);
  const absl::Status status = pass.Run({segment});
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("'add'"));
}

}  // namespace
}  // namespace terrace::compiler
