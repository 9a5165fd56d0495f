// What layers communicate, forward and backward, against the papers that forward.h names.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/layers/forward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/unit/coordinator/compiler/tiny_stage.h"

namespace terrace::compiler {
namespace {

using kernels::Op;
using Counts = std::map<std::string, int>;

// Collectives of one phase by kind; of one layer, or with kNone of what is in none.
Counts Collectives(const TinyStage& stage, v1::Phase phase, int layer) {
  Counts counts;
  for (const Node& node : stage.nodes()) {
    if (node.collective() == nullptr || node.phase != phase || node.layer != layer) continue;
    ++counts[v1::CollectiveKind_Name(node.collective()->kind)];
  }
  return counts;
}

void ExpectInEveryLayer(const TinyJob& job, const Counts& forward, const Counts& backward) {
  TinyStage stage(job);
  stage.RunMicroBatches(1);
  for (int layer = 0; layer < 2; ++layer) {
    EXPECT_EQ(Collectives(stage, v1::FORWARD, layer), forward) << Describe(job);
    EXPECT_EQ(Collectives(stage, v1::BACKWARD, layer), backward) << Describe(job);
  }
}

// Shoeybi et al. 2019, section 3: two all-reduces in the forward pass, two in the backward pass.
TEST(TensorParallelTest, ALayerSumsTwiceEachWay) {
  for (const std::string& family : Families()) {
    for (uint32_t ranks : {2, 4}) {
      ExpectInEveryLayer({.family = family, .tensor_parallel = ranks}, {{"ALL_REDUCE", 2}},
                         {{"ALL_REDUCE", 2}});
    }
  }
}

// Korthikanti et al. 2022, section 4.2.2: all-gathers and reduce-scatters instead, which change
// places in the backward pass.
TEST(TensorParallelTest, SplitTokensAreGatheredAndScattered) {
  for (const std::string& family : Families()) {
    for (uint32_t ranks : {2, 4}) {
      const Counts both = {{"ALL_GATHER", 2}, {"REDUCE_SCATTER", 2}};
      ExpectInEveryLayer({.family = family, .tensor_parallel = ranks, .sequence_parallel = true},
                         both, both);
    }
  }
}

// The embedding is summed, each chunk of the loss gathers three numbers a token, and the gradient
// of what the head multiplies is summed.
TEST(TensorParallelTest, TheEndsOfTheModelCommunicateOnceEach) {
  for (const std::string& family : Families()) {
    TinyStage plain({.family = family, .tensor_parallel = 2});
    plain.RunMicroBatches(1);
    EXPECT_EQ(Collectives(plain, v1::FORWARD, kNone),
              (Counts{{"ALL_REDUCE", 1}, {"ALL_GATHER", 1}}));
    EXPECT_EQ(Collectives(plain, v1::BACKWARD, kNone), (Counts{{"ALL_REDUCE", 1}}));
    TinyStage split({.family = family, .tensor_parallel = 2, .sequence_parallel = true});
    split.RunMicroBatches(1);
    EXPECT_EQ(Collectives(split, v1::FORWARD, kNone),
              (Counts{{"REDUCE_SCATTER", 1}, {"ALL_GATHER", 2}}));
    EXPECT_EQ(Collectives(split, v1::BACKWARD, kNone),
              (Counts{{"REDUCE_SCATTER", 1}, {"ALL_GATHER", 1}}));
  }
}

// What is between two blocks holds 1 / tp of the tokens, what is inside 1 / tp of the columns.
TEST(TensorParallelTest, NormsRunOnTheirShareOfTheTokens) {
  for (const bool split : {false, true}) {
    TinyStage stage({.family = "llama", .tensor_parallel = 4, .sequence_parallel = split});
    stage.RunMicroBatches(1);
    for (const Node& node : stage.nodes()) {
      if (IsOp(node, Op::kRmsNorm)) {
        EXPECT_EQ(node.operands[0].shape.rows(), split ? 6 : 24);
      }
      if (IsOp(node, Op::kSwiglu)) {
        EXPECT_EQ(node.operands[0].shape.rows(), 24);
        EXPECT_EQ(node.operands[0].shape.RowElements(), 48 / 4);
      }
      if (IsOp(node, Op::kAttention)) {
        EXPECT_EQ(node.operands[0].shape.size[1], 1);
        EXPECT_EQ(node.operands[1].shape.size[1], 1);  // of two heads for four ranks
      }
    }
  }
}

// A bias after a sum over ranks must be added once, not once a rank.
TEST(TensorParallelTest, BiasesOfSecondProductsAreAddedAfterTheSum) {
  TinyStage stage({.family = "gpt2", .tensor_parallel = 2});
  stage.RunMicroBatches(1);
  int added = 0;
  for (const Node& node : stage.nodes()) {
    if (IsOp(node, Op::kMatmul) && (node.text == "attn_out" || node.text == "mlp_down")) {
      EXPECT_TRUE(node.operands[3].absent());
      EXPECT_TRUE(node.operands[4].absent());
    }
    if (IsOp(node, Op::kAddResidual)) added += !node.operands[2].absent();
  }
  EXPECT_EQ(added, 4);
}

// Liu et al. 2023: keys and values are sent cp - 1 times forward; backward once more, with their
// gradients, which make one step more to come home.
TEST(ContextParallelTest, KeysGoRoundOnceForwardAndTheirGradientsAllTheWayBackward) {
  for (const std::string& family : Families()) {
    for (int ranks : {2, 3}) {
      ExpectInEveryLayer({.family = family, .context_parallel = static_cast<uint32_t>(ranks)},
                         {{"RING_SHIFT", ranks - 1}}, {{"RING_SHIFT", ranks - 1 + ranks}});
    }
  }
}

TEST(ContextParallelTest, EachStepOfTheRingAttendsToThePairThatArrived) {
  TinyStage stage({.family = "llama", .context_parallel = 3});
  stage.RunMicroBatches(1);
  for (const Op op : {Op::kAttentionBlock, Op::kAttentionBlockGrad}) {
    std::vector<int64_t> steps;
    std::vector<int> pairs;
    for (const Node& node : stage.nodes()) {
      if (!IsOp(node, op) || node.layer != 0) continue;
      const auto& attrs = std::get<kernels::AttentionBlockAttrs>(node.compute()->attrs);
      EXPECT_EQ(attrs.accumulate, attrs.step > 0);
      EXPECT_TRUE(attrs.context.zigzag);
      EXPECT_EQ(attrs.context.ranks, 3);
      steps.push_back(attrs.step);
      pairs.push_back(node.operands[1].value);
      EXPECT_EQ(node.operands[1].value, node.operands[2].value);  // k and v travel together
    }
    EXPECT_EQ(steps, (std::vector<int64_t>{0, 1, 2}));
    for (int i = 1; i < 3; ++i) {
      const bool shifted =
          std::any_of(stage.nodes().begin(), stage.nodes().end(), [&](const Node& node) {
            return node.collective() != nullptr && node.collective()->kind == v1::RING_SHIFT &&
                   node.operands[0].value == pairs[i - 1] && node.operands[1].value == pairs[i];
          });
      EXPECT_TRUE(shifted) << i;
    }
  }
}

// The shift of the next pair stands before the attention to this one, so that they overlap.
TEST(ContextParallelTest, TheNextPairIsOnItsWayWhileThisOneIsUsed) {
  TinyStage stage({.family = "llama", .context_parallel = 3});
  stage.RunMicroBatches(1);
  for (const v1::Phase phase : {v1::FORWARD, v1::BACKWARD}) {
    std::vector<std::string> order;
    for (const Node& node : stage.nodes()) {
      if (node.layer == 1 && node.phase == phase &&
          (node.text.starts_with("ring shift ") || node.text.starts_with("attention step"))) {
        order.push_back(node.text);
      }
    }
    using Strings = std::vector<std::string>;
    EXPECT_EQ(order,
              phase == v1::FORWARD
                  ? (Strings{"ring shift 0", "attention step 0", "ring shift 1", "attention step 1",
                             "attention step 2"})
                  : (Strings{"ring shift 0", "attention step 0 grad", "ring shift of gradients 0",
                             "ring shift 1", "attention step 1 grad", "ring shift of gradients 1",
                             "attention step 2 grad", "ring shift of gradients 2"}));
  }
}

// Jacobs et al. 2023: q, k and v are exchanged before attention and its output after.
TEST(ContextParallelTest, UlyssesExchangesFourTimesEachWay) {
  for (const std::string& family : Families()) {
    ExpectInEveryLayer({.family = family, .context_parallel = 2, .context_type = "ulysses"},
                       {{"ALL_TO_ALL", 4}}, {{"ALL_TO_ALL", 4}});
  }
}

TEST(ContextParallelTest, UlyssesAttendsToWholeSequencesWithAShareOfTheHeads) {
  TinyStage stage({.family = "llama", .context_parallel = 2, .context_type = "ulysses"});
  stage.RunMicroBatches(1);
  int seen = 0;
  for (const Node& node : stage.nodes()) {
    if (!IsOp(node, Op::kAttention)) continue;
    EXPECT_EQ(std::get<kernels::AttentionAttrs>(node.compute()->attrs).sequence, 12);
    EXPECT_EQ(node.operands[0].shape.rows(), 24);
    EXPECT_EQ(node.operands[0].shape.size[1], 2);  // of 4
    EXPECT_EQ(node.operands[1].shape.size[1], 1);  // of 2
    ++seen;
  }
  EXPECT_EQ(seen, 2);
}

TEST(ContextParallelTest, EverythingElseRunsOnAShareOfTheTokens) {
  for (const char* type : {"ring", "ulysses"}) {
    TinyStage stage({.family = "gpt2", .context_parallel = 2, .context_type = type});
    stage.RunMicroBatches(1);
    for (const Node& node : stage.nodes()) {
      if (IsOp(node, Op::kLayerNorm)) {
        EXPECT_EQ(node.operands[0].shape.rows(), 12);
      }
      if (IsOp(node, Op::kEmbedding)) {
        const auto& attrs = std::get<kernels::EmbeddingAttrs>(node.compute()->attrs);
        EXPECT_EQ(attrs.sequence, 6);
        EXPECT_EQ(attrs.context.ranks, 2);
        EXPECT_EQ(attrs.context.zigzag, std::string(type) == "ring");
      }
    }
  }
}

// Both at once: the ring is over heads of a tensor-parallel rank.
TEST(ContextParallelTest, TensorAndContextParallelismAddUp) {
  ExpectInEveryLayer(
      {.family = "llama", .tensor_parallel = 2, .sequence_parallel = true, .context_parallel = 2},
      {{"ALL_GATHER", 2}, {"REDUCE_SCATTER", 2}, {"RING_SHIFT", 1}},
      {{"ALL_GATHER", 2}, {"REDUCE_SCATTER", 2}, {"RING_SHIFT", 3}});
}

TEST(ForwardTest, EveryOperationOfEveryLayoutKeepsTheRulesOfItsOp) {
  for (const std::string& family : Families()) {
    for (TinyJob job : {TinyJob{.tensor_parallel = 4},
                        {.tensor_parallel = 4, .sequence_parallel = true},
                        {.context_parallel = 3},
                        {.context_parallel = 2, .context_type = "ulysses"},
                        {.tensor_parallel = 2, .context_parallel = 2},
                        {.data_parallel = 2, .zero_stage = 3}}) {
      job.family = family;
      job.precision = "bf16";
      TinyStage stage(job);
      stage.RunMicroBatches(1);
      for (const Node& node : stage.nodes()) {
        if (node.compute() == nullptr) continue;
        kernels::OpAttrs attrs = node.compute()->attrs;
        if (auto* loss = std::get_if<kernels::LossAttrs>(&attrs)) loss->chunk_rows = 1;
        EXPECT_EQ(kernels::CheckShapes(node.compute()->op, attrs, ShapesOf(node)), "")
            << Describe(job) << ": " << node.text;
      }
    }
  }
}

}  // namespace
}  // namespace terrace::compiler
