// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/layers/recompute.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/unit/coordinator/compiler/tiny_stage.h"

namespace terrace::compiler {
namespace {

using kernels::Op;

std::string KindOf(const Node& node) {
  if (node.compute() != nullptr) return std::string(kernels::Name(node.compute()->op));
  return node.collective() != nullptr ? v1::CollectiveKind_Name(node.collective()->kind) : "";
}

using Counts = std::map<std::string, int>;

// Of one forward and one backward pass of a micro-batch.
class RecomputeTest : public testing::Test {
 protected:
  void Build(const TinyJob& job) {
    stage_ = std::make_unique<TinyStage>(job);
    stage_->RunMicroBatches(1);
  }
  const std::vector<Node>& nodes() const { return stage_->nodes(); }

  Counts Repeated() const {
    Counts counts;
    for (const Node& node : nodes()) {
      if (node.phase == v1::RECOMPUTE) ++counts[KindOf(node)];
    }
    return counts;
  }
  int Repeated(const std::string& text) const {
    return static_cast<int>(std::count_if(nodes().begin(), nodes().end(), [&](const Node& node) {
      return node.phase == v1::RECOMPUTE && node.text == text + " again";
    }));
  }
  int RepeatedProducts() const {
    const Counts counts = Repeated();
    return counts.contains("matmul") ? counts.at("matmul") : 0;
  }

  // What layers wrote in the forward pass and something reads after it.
  std::set<int> Kept() const {
    std::set<int> written, kept;
    for (const Node& node : nodes()) {
      for (int k = 0; k < static_cast<int>(node.operands.size()); ++k) {
        if (node.operands[k].absent()) continue;
        const int root = stage_->Root(node.operands[k]);
        const Value& value = stage_->graph.values[root];
        if (node.phase == v1::FORWARD && Writes(node, k) && value.cls == v1::ACTIVATION &&
            node.layer != kNone) {
          written.insert(root);
        } else if (node.phase != v1::FORWARD && Reads(node, k) && written.contains(root)) {
          kept.insert(root);
        }
      }
    }
    return kept;
  }
  // Without the statistics, in units of tokens x hidden.
  double KeptResiduals(int layer) const {
    const std::string prefix = "mb0.layer" + std::to_string(layer) + ".";
    int64_t bytes = 0;
    for (int root : Kept()) {
      const Value& value = stage_->graph.values[root];
      if (value.dtype != kernels::DType::kBF16 || !value.name.starts_with(prefix)) continue;
      bytes += value.elements() * kernels::SizeOf(value.dtype);
    }
    return static_cast<double>(bytes) / (24.0 * 32.0);
  }

  std::unique_ptr<TinyStage> stage_;
};

TEST_F(RecomputeTest, NoneRepeatsNothing) {
  for (const std::string& family : Families()) {
    Build({.family = family});
    EXPECT_EQ(Repeated(), Counts()) << family;
  }
}

TEST_F(RecomputeTest, SelectiveRepeatsNormsAndActivationFunctionsOnly) {
  for (const std::string& family : Families()) {
    Build({.family = family, .recompute = "selective"});
    const Counts expected = family == "gpt2" ? Counts{{"layer_norm", 4}, {"gelu", 2}}
                                             : Counts{{"rms_norm", 4}, {"swiglu", 2}};
    EXPECT_EQ(Repeated(), expected) << family;
  }
}

TEST_F(RecomputeTest, SelectiveGathersAgainWhatSequenceParallelismGathered) {
  for (const std::string& family : Families()) {
    Build({.family = family,
           .tensor_parallel = 2,
           .sequence_parallel = true,
           .recompute = "selective"});
    const Counts expected = family == "gpt2"
                                ? Counts{{"layer_norm", 4}, {"gelu", 2}, {"ALL_GATHER", 4}}
                                : Counts{{"rms_norm", 4}, {"swiglu", 2}, {"ALL_GATHER", 4}};
    EXPECT_EQ(Repeated(), expected) << family;
  }
}

// Nothing in a segment's backward pass reads what its last product writes.
TEST_F(RecomputeTest, EverySegmentIsRepeatedWithoutItsLastProduct) {
  const TinySizes sizes = {.layers = 4};
  for (const std::string& family : Families()) {
    const std::map<std::string, int> segments = {
        {"block", 4}, {"sqrt", 2}, {"every", 2}, {"full", 1}};
    for (const auto& [recompute, count] : segments) {
      for (uint32_t tensor : {1, 2}) {
        Build({.family = family,
               .tensor_parallel = tensor,
               .recompute = recompute,
               .recompute_every = 3,
               .sizes = sizes});
        SCOPED_TRACE(family + " " + recompute + " tp " + std::to_string(tensor));
        EXPECT_EQ(RepeatedProducts(), 4 * 4 - count);
        EXPECT_EQ(Repeated("mlp_down"), 4 - count);
        EXPECT_EQ(Repeated("sum mlp_down"), tensor == 1 ? 0 : 4 - count);
        EXPECT_EQ(Repeated("attention"), 4);
        EXPECT_EQ(Repeated("embedding"), 0);
      }
    }
  }
}

TEST_F(RecomputeTest, EveryGroupsKLayersAndLeavesTheRest) {
  v1::Layout layout = TinyLayout({.recompute = "every", .recompute_every = 3});
  const std::vector<SegmentPlan> plan = PlanSegments(layout, {.begin = 4, .end = 11});
  ASSERT_EQ(plan.size(), 3u);
  EXPECT_EQ(plan[1].begin, 7);
  EXPECT_EQ(plan[2].begin, 10);
  EXPECT_EQ(plan[2].end, 11);
  layout.set_recompute("sqrt");
  EXPECT_EQ(PlanSegments(layout, {.begin = 0, .end = 16}).size(), 4u);
  EXPECT_EQ(PlanSegments(layout, {.begin = 0, .end = 17}).size(), 4u);  // of 5
}

TEST_F(RecomputeTest, LayersMayDiffer) {
  v1::Layout layout = TinyLayout({});
  for (const char* recompute : {"none", "block", "selective", "block"}) {
    layout.add_recompute_layers(recompute);
  }
  const std::vector<SegmentPlan> plan = PlanSegments(layout, {.begin = 1, .end = 4});
  ASSERT_EQ(plan.size(), 3u);
  EXPECT_EQ(plan[0].recompute, Recompute::kAll);
  EXPECT_EQ(plan[1].recompute, Recompute::kSelective);
  EXPECT_EQ(plan[2].recompute, Recompute::kAll);
}

TEST_F(RecomputeTest, BlocksKeepTheirInputOnly) {
  for (const std::string& family : Families()) {
    Build({.family = family, .recompute = "block", .sizes = {.layers = 4}});
    // Inputs of layers 1 to 3 and of the final norm.
    EXPECT_EQ(Kept().size(), 4u) << family;
  }
}

// The output of the last layer is what the final norm keeps.
TEST_F(RecomputeTest, FullKeepsOneInputOfAChunk) {
  for (const std::string& family : Families()) {
    Build({.family = family, .recompute = "full", .sizes = {.layers = 4}});
    EXPECT_EQ(Kept().size(), 1u) << family;
  }
}

// Korthikanti et al. 2022, table 2, for a GPT layer in 16 bit: s b h (10 + 24 / t) without and
// 34 s b h / t with sequence parallelism, of which dropout masks (1 in each block at full width,
// here absent) are 2. What is gathered stays whole unless it is gathered again.
TEST_F(RecomputeTest, ALayerKeepsWhatThePaperCounts) {
  const auto kept = [&](uint32_t tensor, bool split, const std::string& recompute) {
    Build({.precision = "bf16",
           .tensor_parallel = tensor,
           .sequence_parallel = split,
           .recompute = recompute});
    return KeptResiduals(0);
  };
  EXPECT_DOUBLE_EQ(kept(1, false, "none"), 32);
  EXPECT_DOUBLE_EQ(kept(2, false, "none"), 8 + 24 / 2.0);
  EXPECT_DOUBLE_EQ(kept(4, false, "none"), 8 + 24 / 4.0);
  EXPECT_DOUBLE_EQ(kept(2, true, "none"), 4 + 28 / 2.0);
  // Without the outputs of norms (4) and of the GELU (8).
  EXPECT_DOUBLE_EQ(kept(1, false, "selective"), 20);
  EXPECT_DOUBLE_EQ(kept(2, true, "selective"), 20 / 2.0);
  EXPECT_DOUBLE_EQ(kept(4, true, "selective"), 20 / 4.0);
  EXPECT_DOUBLE_EQ(kept(4, true, "block"), 2 / 4.0);
}

// The arena of the first stage of a deep model.
int64_t ArenaBytes(TinyJob job, const std::string& recompute) {
  job.recompute = recompute;
  job.sizes = {.layers = 16, .sequence = 64};
  return CompileTiny(job).arenas(0).bytes();
}

TEST(RecomputeMemoryTest, EachStepNeedsLess) {
  for (const std::string& family : Families()) {
    for (const char* precision : {"fp32", "bf16"}) {
      const TinyJob job = {.family = family, .precision = precision};
      const int64_t none = ArenaBytes(job, "none"), selective = ArenaBytes(job, "selective"),
                    block = ArenaBytes(job, "block");
      EXPECT_GT(none, selective) << Describe(job);
      EXPECT_GT(selective, block) << Describe(job);
    }
  }
}

// Full recompute has a whole chunk there while it is repeated, but only of one micro-batch: it pays
// where many are on their way.
TEST(RecomputeMemoryTest, FullKeepsLittleOfEachMicroBatchOnItsWay) {
  const TinyJob job = {
      .family = "llama", .micro_batches = 8, .pipeline_parallel = 2, .schedule = "gpipe"};
  const int64_t none = ArenaBytes(job, "none"), root = ArenaBytes(job, "sqrt"),
                full = ArenaBytes(job, "full");
  EXPECT_GT(none, 3 * full);
  EXPECT_GT(full, root);
}

// A value that is recomputed is another value: nothing may read the first one after the forward
// pass, or its memory would stay.
TEST_F(RecomputeTest, WhatIsRepeatedIsNotKept) {
  for (const std::string recompute : {"selective", "block", "sqrt", "full"}) {
    for (const std::string& family : Families()) {
      Build({.family = family, .recompute = recompute, .sizes = {.layers = 4}});
      std::set<std::string> repeated;
      for (const Value& value : stage_->graph.values) {
        const size_t again = value.name.find(".again");
        if (again != std::string::npos) repeated.insert(value.name.substr(0, again));
      }
      EXPECT_FALSE(repeated.empty());
      for (int root : Kept()) {
        EXPECT_FALSE(repeated.contains(stage_->graph.values[root].name))
            << family << " " << recompute << ": " << stage_->graph.values[root].name;
      }
    }
  }
}

}  // namespace
}  // namespace terrace::compiler
