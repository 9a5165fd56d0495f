// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/layers/autodiff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

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

// Two micro-batches whose weight gradients come last, as a zero-bubble schedule may put them.
class PutOffWeightsTest : public testing::TestWithParam<TinyJob> {
 protected:
  static std::unique_ptr<TinyStage> Build(const TinyJob& job, bool put_off) {
    auto stage = std::make_unique<TinyStage>(job);
    std::vector<Pass> passes;
    for (const PassKind kind : put_off ? std::vector{PassKind::kForward, PassKind::kBackwardInput,
                                                     PassKind::kBackwardWeight}
                                       : std::vector{PassKind::kForward, PassKind::kBackward}) {
      for (int i = 0; i < 2; ++i) passes.push_back({.kind = kind, .micro_batch = i});
    }
    stage->Run(passes);
    return stage;
  }

  static bool IsOfWeights(const Node& node) {
    return node.layer != kNone && (node.text.ends_with("dweight") || node.text.ends_with("dbias"));
  }
  static std::string NameOf(const Node& node) {
    return absl::StrCat("micro-batch ", node.micro_batch, " layer ", node.layer, " ", node.text);
  }

  // For each gradient of a weight and each of its operands: what last wrote the bytes it reads,
  // itself left out.
  static std::map<std::string, std::vector<std::string>> Sources(const TinyStage& stage) {
    std::map<std::string, std::vector<std::string>> sources;
    for (size_t i = 0; i < stage.nodes().size(); ++i) {
      const Node& node = stage.nodes()[i];
      if (!IsOfWeights(node)) continue;
      std::vector<std::string>& of_node = sources[NameOf(node)];
      for (int k = 0; k < static_cast<int>(node.operands.size()); ++k) {
        if (AccessOf(node, k) == Access::kRead) {
          of_node.push_back(LastWriter(stage, i, node.operands[k]));
        }
      }
    }
    return sources;
  }

  static std::string LastWriter(const TinyStage& stage, size_t before, const Slice& slice) {
    const Slice read = stage.graph.Root(slice);
    for (size_t i = before; i-- > 0;) {
      const Node& node = stage.nodes()[i];
      for (int k = 0; k < static_cast<int>(node.operands.size()); ++k) {
        if (!Writes(node, k)) continue;
        const Slice written = stage.graph.Root(node.operands[k]);
        if (written.value == read.value && Meet(written, read)) return NameOf(node);
      }
    }
    return "nothing";
  }

  // Rows of one value, strided alike: columns decide.
  static bool Meet(const Slice& a, const Slice& b) {
    if (a.shape.row_stride != b.shape.row_stride) return true;
    const int64_t stride = a.shape.row_stride;
    const auto columns = [stride](const Slice& s) {
      return std::pair(s.offset % stride, s.offset % stride + s.shape.RowElements());
    };
    return columns(a).first < columns(b).second && columns(b).first < columns(a).second;
  }
};

TEST_P(PutOffWeightsTest, WeightGradientsReadWhatTheyWouldHaveReadAtOnce) {
  const auto at_once = Sources(*Build(GetParam(), /*put_off=*/false));
  const auto put_off = Sources(*Build(GetParam(), /*put_off=*/true));
  EXPECT_GE(at_once.size(), 2u * 2 * 4);  // micro-batches, layers, products
  ASSERT_EQ(put_off.size(), at_once.size());
  for (const auto& [name, sources] : at_once) {
    ASSERT_TRUE(put_off.contains(name)) << name;
    EXPECT_EQ(put_off.at(name), sources) << name;
    for (const std::string& source : sources) EXPECT_NE(source, "nothing") << name;
  }
}

TEST_P(PutOffWeightsTest, NoWeightGradientOfALayerStandsInTheInputPass) {
  const std::unique_ptr<TinyStage> stage = Build(GetParam(), /*put_off=*/true);
  const auto first = std::find_if(stage->nodes().begin(), stage->nodes().end(), IsOfWeights);
  for (auto node = first; node != stage->nodes().end(); ++node) {
    EXPECT_TRUE(node->compute() != nullptr && (IsOfWeights(*node) || IsOp(*node, Op::kFill)))
        << NameOf(*node);
  }
}

TEST_P(PutOffWeightsTest, TheFirstContributionStillWrites) {
  const std::unique_ptr<TinyStage> stage = Build(GetParam(), /*put_off=*/true);
  for (const auto& scope : stage->gradients.all()) {
    for (const auto& [parameter, gradient] : scope->by_parameter()) {
      bool first = true;
      for (const Node& node : stage->nodes()) {
        for (int k = 0; k < static_cast<int>(node.operands.size()); ++k) {
          if (node.operands[k].value != gradient) continue;
          EXPECT_EQ(AccessOf(node, k), first ? Access::kWrite : Access::kUpdate) << NameOf(node);
          first = false;
        }
      }
    }
  }
}

std::vector<TinyJob> PutOffJobs() {
  std::vector<TinyJob> jobs;
  for (const std::string& family : Families()) {
    jobs.push_back({.family = family});
    jobs.push_back({.family = family, .tensor_parallel = 2});
    jobs.push_back({.family = family, .tensor_parallel = 4, .sequence_parallel = true});
    jobs.push_back({.family = family, .context_parallel = 2});
    jobs.push_back({.family = family, .context_parallel = 2, .context_type = "ulysses"});
    jobs.push_back({.family = family, .data_parallel = 2, .zero_stage = 1});
    jobs.push_back({.family = family, .data_parallel = 2, .tensor_parallel = 2, .zero_stage = 2});
  }
  return jobs;
}

INSTANTIATE_TEST_SUITE_P(Layouts, PutOffWeightsTest, testing::ValuesIn(PutOffJobs()));

TEST_F(AutodiffTest, AnOpWithoutARuleIsNamed) {
  TinyStage stage({.family = "llama"});
  stage.graph.sequences.push_back({.name = "train"});
  Builder builder(&stage.graph, 0);
  Segment segment;
  builder.record = &segment.nodes;
  const Slice x = builder.NewValue("x", v1::ACTIVATION, kernels::DType::kF32, {4});
  builder.Compute(Op::kAdd, kernels::NoAttrs{}, {x, x}, "add");
  builder.record = nullptr;
  BackwardPass pass(&stage.gradients.Of(0, 0), /*put_off_weights=*/false, /*prefetched=*/nullptr,
                    &builder);
  const absl::Status status = pass.Run({segment});
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("'add'"));
}

}  // namespace
}  // namespace terrace::compiler
