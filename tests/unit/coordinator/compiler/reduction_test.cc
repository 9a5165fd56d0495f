// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/reduction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/compiler/pack/liveness.h"
#include "proto/program/grid.h"
#include "tests/unit/coordinator/compiler/tiny_stage.h"

namespace terrace {
namespace {

const std::string& GroupOf(const v1::Program& program, const v1::Instruction& instruction) {
  return program.groups(instruction.collective().group()).name();
}

bool Is(const v1::Instruction& instruction, v1::CollectiveKind kind) {
  return instruction.collective().kind() == kind;
}

// How often each kind of collective of "train" runs over each group on gradients of weights.
std::map<std::pair<std::string, std::string>, int> OnGradients(const v1::Program& program) {
  std::map<std::pair<std::string, std::string>, int> counts;
  for (const v1::Instruction& instruction : SequenceOf(program, "train").instructions()) {
    if (!instruction.has_collective()) continue;
    const v1::Buffer& buffer = program.buffers(instruction.operands(0).buffer());
    if (buffer.class_() != v1::GRADIENT) continue;
    ++counts[{v1::CollectiveKind_Name(instruction.collective().kind()),
              GroupOf(program, instruction)}];
  }
  return counts;
}

// How often each unit's gradient is reduce-scattered in a step.
std::map<std::string, int> Scattered(const v1::Program& program) {
  std::map<std::string, int> counts;
  for (const v1::Instruction& instruction : SequenceOf(program, "train").instructions()) {
    if (Is(instruction, v1::REDUCE_SCATTER) && GroupOf(program, instruction) == "shard") {
      ++counts[instruction.text()];
    }
  }
  return counts;
}

TEST(ReductionTest, ZeroOneScattersEachUnitOnceAStep) {
  for (const std::string& family : Families()) {
    const auto counts = Scattered(
        CompileTiny({.family = family, .data_parallel = 2, .micro_batches = 3, .zero_stage = 1}));
    EXPECT_GE(counts.size(), 4u);
    for (const auto& [unit, count] : counts) EXPECT_EQ(count, 1) << family << " " << unit;
  }
}

TEST(ReductionTest, ZeroTwoAndThreeScatterEachUnitOnceAMicroBatch) {
  for (uint32_t zero : {2, 3}) {
    for (const std::string& family : Families()) {
      const auto counts = Scattered(CompileTiny(
          {.family = family, .data_parallel = 2, .micro_batches = 3, .zero_stage = zero}));
      EXPECT_GE(counts.size(), 4u);
      for (const auto& [unit, count] : counts) EXPECT_EQ(count, 3) << family << " " << unit;
    }
  }
}

TEST(ReductionTest, ShardsOfReplicasAreSummedOnceAStep) {
  const auto counts = OnGradients(CompileTiny({.family = "llama",
                                               .data_parallel = 4,
                                               .micro_batches = 3,
                                               .zero_stage = 2,
                                               .shard_size = 2}));
  const int units = counts.at({"REDUCE_SCATTER", "shard"}) / 3;
  EXPECT_EQ(counts.at({"ALL_REDUCE", "replica"}), units);
  EXPECT_EQ(counts.size(), 2u);
}

// Without ZeRO: all of a bucket's sums, each once; norms over the tensor ranks where those saw
// different tokens.
TEST(ReductionTest, BucketsAreSummedOverEveryGroupThatContributes) {
  const auto groups = [](const TinyJob& job) {
    std::set<std::string> names;
    for (const auto& [key, count] : OnGradients(CompileTiny(job))) {
      EXPECT_EQ(key.first, "ALL_REDUCE");
      names.insert(key.second);
    }
    return names;
  };
  using Names = std::set<std::string>;
  EXPECT_EQ(groups({.family = "llama", .data_parallel = 2}), Names{"data"});
  EXPECT_EQ(groups({.family = "llama", .context_parallel = 2}), Names{"data"});
  EXPECT_EQ(groups({.family = "llama", .tensor_parallel = 2}), Names{});
  EXPECT_EQ(groups({.family = "llama", .tensor_parallel = 2, .sequence_parallel = true}),
            Names{"tensor"});
  EXPECT_EQ(groups({.family = "qwen3", .tensor_parallel = 2}), Names{"tensor"});  // of head norms
  EXPECT_EQ(groups({.family = "llama", .data_parallel = 2, .tensor_parallel = 4}),
            (Names{"data", "tensor_block"}));
  EXPECT_EQ(groups({.family = "qwen3", .pipeline_parallel = 2}), Names{"tied"});
}

// The share of each rank in the squared norm, over all ranks of the group "model": each element of
// the model once. What pads equal shares is zero.
class SquaresTest : public testing::TestWithParam<TinyJob> {
 protected:
  static double SquaredElements(const v1::Program& program) {
    double elements = 0;
    for (const v1::Instruction& instruction : SequenceOf(program, "train").instructions()) {
      if (instruction.compute().op() != "squared_norm") continue;
      elements += instruction.compute().scale().scale() *
                  static_cast<double>(instruction.operands(0).shape(0));
    }
    return elements;
  }
};

TEST_P(SquaresTest, EveryElementCountsOnce) {
  TinyJob job = GetParam();
  // Nothing to pad: each rank's share of a matrix is a number of pages.
  job.sizes = {.vocabulary = 128, .hidden = 128, .intermediate = 128, .sequence = 24};
  double elements = 0;
  for (const v1::Program& program : CompileStages(job)) {
    const double sharers = job.zero_stage > 0 ? ShardCount(program.grid()) : 1;
    elements += AxisSize(program.grid(), v1::TENSOR) * sharers * SquaredElements(program);
  }
  const auto total = static_cast<double>(TinyModel(job.family, job.sizes).Parameters());
  // Sharded units are padded: vectors to 16 elements each, each unit to 16 a rank.
  EXPECT_GE(elements, total * (1 - 1e-6)) << Describe(job);
  EXPECT_LE(elements, total * (job.zero_stage > 0 ? 1.05 : 1 + 1e-6)) << Describe(job);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, SquaresTest,
    testing::Values(
        TinyJob{.family = "gpt2"}, TinyJob{.family = "qwen3", .tensor_parallel = 2},
        TinyJob{.family = "qwen2", .tensor_parallel = 4},
        TinyJob{.family = "llama", .tensor_parallel = 4, .sequence_parallel = true},
        TinyJob{.family = "qwen3", .tensor_parallel = 2, .pipeline_parallel = 2},
        TinyJob{.family = "gpt2", .data_parallel = 2, .pipeline_parallel = 2},
        TinyJob{.family = "gpt2", .pipeline_parallel = 2, .sizes = {.layers = 4}},
        TinyJob{.family = "llama", .context_parallel = 2},
        TinyJob{.family = "llama", .data_parallel = 2, .zero_stage = 1},
        TinyJob{.family = "qwen3", .data_parallel = 4, .zero_stage = 2, .shard_size = 2},
        TinyJob{.family = "qwen2", .data_parallel = 2, .tensor_parallel = 4, .zero_stage = 3},
        TinyJob{.family = "qwen3", .data_parallel = 2, .pipeline_parallel = 2, .zero_stage = 2}));

// Full-size gradients of ZeRO-2 and 3 live from their first contribution to the end of their
// reduction: that of a layer is over before the next but two begins.
TEST(ReductionTest, FullSizeGradientsDieSoon) {
  for (uint32_t zero : {2, 3}) {
    for (const char* recompute : {"none", "block"}) {
      const TinyJob job = {.family = "llama",
                           .data_parallel = 2,
                           .micro_batches = 2,
                           .zero_stage = zero,
                           .recompute = recompute,
                           .sizes = {.layers = 8}};
      const v1::Program program = CompileTiny(job);
      const std::vector<Life> lives = Liveness(program, SequenceOf(program, "train"));
      // In the order of their beginning: the last layer of the first micro-batch first.
      std::vector<Life> of_layers;
      for (int i = 0; i < program.buffers_size(); ++i) {
        const v1::Buffer& buffer = program.buffers(i);
        if (buffer.class_() != v1::GRADIENT || buffer.lifetime() != v1::STEP) continue;
        if (buffer.name().find("grads.layer") == std::string::npos) continue;
        of_layers.push_back(lives[i]);
      }
      ASSERT_EQ(of_layers.size(), 2u * 8) << Describe(job);
      std::sort(of_layers.begin(), of_layers.end(),
                [](const Life& a, const Life& b) { return a.begin < b.begin; });
      for (size_t i = 0; i + 3 < of_layers.size(); ++i) {
        EXPECT_LE(of_layers[i].end, of_layers[i + 3].begin) << Describe(job) << " number " << i;
      }
    }
  }
}

// Of one rank, by class of the table of Rajbhandari et al. 2020 with all in f32: weights,
// gradients, and what the optimizer keeps (with ZeRO the master weights as well).
class ZeroMemoryTest : public testing::Test {
 protected:
  static constexpr double kRanks = 4;
  struct Bytes {
    double persistent = 0, peak = 0;  // a parameter of the model
  };
  // Matrices are nearly everything; of a single token nearly nothing is kept.
  static Bytes Measure(uint32_t zero, uint32_t shard_size = 0) {
    const TinyJob job = {.family = "llama",
                         .data_parallel = 4,
                         .micro_batches = 2,
                         .bucket_bytes = 4 << 20,
                         .zero_stage = zero,
                         .shard_size = shard_size,
                         .recompute = "block",
                         .sizes = {.vocabulary = 64,
                                   .hidden = 256,
                                   .layers = kLayers,
                                   .intermediate = 1024,
                                   .sequence = 2}};
    const v1::Program program = CompileTiny(job);
    const auto parameters = static_cast<double>(TinyModel(job.family, job.sizes).Parameters());
    Bytes bytes = {.peak = static_cast<double>(program.arenas(0).bytes()) / parameters};
    for (const v1::Buffer& buffer : program.buffers()) {
      if (buffer.lifetime() != v1::PERSISTENT) continue;
      bytes.persistent += static_cast<double>(buffer.bytes()) / parameters;
    }
    return bytes;
  }
  static constexpr int64_t kLayers = 24;
  // A layer's weights or gradients in full, a parameter of the model.
  static constexpr double kLayer = 4.0 / kLayers;
  // Vectors have a bucket of their own and matrices begin on pages.
  static constexpr double kPages = 0.02;
};

TEST_F(ZeroMemoryTest, EachStageShardsOneKindMore) {
  const double tolerance = 0.15;
  const Bytes none = Measure(0), one = Measure(1), two = Measure(2), three = Measure(3);
  EXPECT_NEAR(none.persistent, 4 + 8, tolerance);
  EXPECT_NEAR(one.persistent, 4 + 12 / kRanks, tolerance);
  EXPECT_NEAR(two.persistent, 4 + 12 / kRanks, tolerance);
  EXPECT_NEAR(three.persistent, 12 / kRanks, tolerance);
  EXPECT_NEAR(none.peak, 4 + 4 + 8, tolerance + kPages);
  // The first shards are there while the last full gradients still are.
  EXPECT_NEAR(one.peak, 4 + 4 + 12 / kRanks, tolerance + 2 * kLayer);
  // Full gradients and new shards of at most three layers.
  EXPECT_NEAR(two.peak, 4 + 16 / kRanks, tolerance + 3 * kLayer * (1 + 1 / kRanks));
  // The same, and gathered weights of two layers.
  EXPECT_NEAR(three.peak, 16 / kRanks, tolerance + 5 * kLayer + 3 * kLayer / kRanks);
  EXPECT_GT(none.peak, one.peak + 1);
  EXPECT_GT(one.peak, two.peak + 1);
  EXPECT_GT(two.peak, three.peak + 1);
}

TEST_F(ZeroMemoryTest, AHierarchyShardsOverFewerRanks) {
  EXPECT_NEAR(Measure(3, 2).persistent, 12 / 2.0, 0.15);
}

}  // namespace
}  // namespace terrace
