// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/state/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "proto/program/state_layout.h"
#include "tests/unit/coordinator/compiler/tiny_stage.h"

namespace terrace::compiler {
namespace {

const Parameter& ParameterOf(const TinyStage& stage, TensorRole role, int layer = kNone) {
  const int index = stage.parameters.Find(role, layer);
  EXPECT_NE(index, kNone);
  return stage.parameters.all().at(index);
}

// Where the rectangle of a tensor-parallel rank starts.
int64_t Start(const Parameter& parameter, const Part& part, int64_t rank) {
  const int64_t size = part.split == v1::StateRange::BY_ROWS ? part.rows : part.columns;
  const int64_t first = part.split == v1::StateRange::BY_ROWS ? part.row : part.column;
  return first + rank / parameter.split_block * size;
}

bool IsVector(const Tensor& tensor) { return tensor.shape.size() < 2; }

// What Shoeybi et al. leave whole on every rank: norms, positions and the biases of second
// products.
bool IsWhole(TensorRole role) {
  using enum TensorRole;
  for (TensorRole whole : {kPositionEmbedding, kEmbeddingNorm, kEmbeddingNormBias, kFinalNorm,
                           kFinalNormBias, kAttentionNorm, kAttentionNormBias, kQNorm, kKNorm,
                           kAttentionOutBias, kMlpNorm, kMlpNormBias, kMlpDownBias}) {
    if (role == whole) return true;
  }
  return false;
}

// How many of `ranks` hold each element.
int CopiesOf(const Tensor& tensor, int64_t kv_heads, int ranks) {
  using enum TensorRole;
  if (IsWhole(tensor.role)) return ranks;
  const bool kv =
      tensor.role == kK || tensor.role == kV || tensor.role == kKBias || tensor.role == kVBias;
  return kv && ranks > kv_heads ? ranks / static_cast<int>(kv_heads) : 1;
}

class PartitionTest : public testing::TestWithParam<std::tuple<std::string, uint32_t>> {};

// From the manifest: element by element over all tensor-parallel ranks.
TEST_P(PartitionTest, EveryElementIsHeldByAsManyRanksAsShareIt) {
  const auto& [family, ranks] = GetParam();
  const TinyJob job = {.family = family, .tensor_parallel = ranks};
  const v1::Program program = CompileTiny(job);
  const Model model = TinyModel(family);
  std::map<std::string, std::vector<int>> held, owned;
  for (const v1::StateRange& range : program.state()) {
    if (range.kind() != v1::WEIGHT) continue;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const bool owns = OwnsState(range, program.grid(), {.tensor = rank});
      for (const StateRun& run : RunsOf(range, program.grid(), {.tensor = rank})) {
        for (int64_t i = run.begin; i < run.begin + run.elements; ++i) {
          auto& holders = held[range.tensor()];
          auto& owners = owned[range.tensor()];
          holders.resize(std::max<size_t>(holders.size(), i + 1));
          owners.resize(holders.size());
          ++holders[i];
          owners[i] += owns;
        }
      }
    }
  }
  for (const Tensor& tensor : model.tensors) {
    const int copies = CopiesOf(tensor, model.config.kv_heads, static_cast<int>(ranks));
    EXPECT_EQ(held[tensor.name], std::vector<int>(tensor.elements(), copies)) << tensor.name;
    EXPECT_EQ(owned[tensor.name], std::vector<int>(tensor.elements(), 1)) << tensor.name;
  }
}

// The parts of a parameter lie in its matrix without gaps and without overlap.
TEST_P(PartitionTest, PartsTileTheirParameter) {
  const auto& [family, ranks] = GetParam();
  const TinyStage stage({.family = family, .tensor_parallel = ranks});
  for (const Parameter& parameter : stage.parameters.all()) {
    std::vector<int> taken(parameter.elements());
    for (const Part& part : parameter.parts) {
      for (int64_t row = 0; row < part.rows; ++row) {
        for (int64_t column = 0; column < part.columns; ++column) {
          ++taken.at(part.offset + row * part.row_stride + column);
        }
      }
    }
    EXPECT_EQ(taken, std::vector<int>(parameter.elements(), 1)) << parameter.first().name;
  }
}

// `copies` divides the squared norm of a gradient that several ranks of the group "model" hold.
TEST_P(PartitionTest, CopiesCountTheRanksThatHoldTheSameGradient) {
  const auto& [family, ranks] = GetParam();
  const TinyStage stage({.family = family, .tensor_parallel = ranks});
  for (const Parameter& parameter : stage.parameters.all()) {
    EXPECT_EQ(parameter.sums.copies,
              CopiesOf(parameter.first(), stage.model.config.kv_heads, static_cast<int>(ranks)))
        << parameter.first().name;
  }
}

INSTANTIATE_TEST_SUITE_P(Phi3, PartitionTest,
                         testing::Combine(testing::Values(std::string("phi3")),
                                          testing::Values(1u, 2u)),
                         [](const auto& info) {
                           return "tp" + std::to_string(std::get<1>(info.param));
                         });

INSTANTIATE_TEST_SUITE_P(Families, PartitionTest,
                         testing::Combine(testing::ValuesIn(Families()),
                                          testing::Values(1u, 2u, 4u)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_tp" +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST(PartitionShapesTest, FirstProductsAreSplitByOutputsAndSecondOnesByInputs) {
  const TinyStage stage({.family = "qwen2", .tensor_parallel = 2});
  const auto shape = [&](TensorRole role) { return ParameterOf(stage, role, 1).shape; };
  EXPECT_EQ(shape(TensorRole::kQ), (Dims{16 + 8 + 8, 32}));
  EXPECT_EQ(shape(TensorRole::kQBias), (Dims{16 + 8 + 8}));
  EXPECT_EQ(shape(TensorRole::kAttentionOut), (Dims{32, 16}));
  EXPECT_EQ(shape(TensorRole::kMlpGate), (Dims{24 + 24, 32}));
  EXPECT_EQ(shape(TensorRole::kMlpDown), (Dims{32, 24}));
  EXPECT_EQ(shape(TensorRole::kMlpNorm), (Dims{32}));
}

// Stored [in, out], so that the sides change places.
TEST(PartitionShapesTest, Gpt2WeightsAreSplitAlongTheOtherSide) {
  const TinyStage stage({.family = "gpt2", .tensor_parallel = 4});
  const auto shape = [&](TensorRole role) { return ParameterOf(stage, role, 0).shape; };
  EXPECT_EQ(shape(TensorRole::kQkv), (Dims{32, 3 * 8}));
  EXPECT_EQ(shape(TensorRole::kQkvBias), (Dims{3 * 8}));
  EXPECT_EQ(shape(TensorRole::kAttentionOut), (Dims{8, 32}));
  EXPECT_EQ(shape(TensorRole::kAttentionOutBias), (Dims{32}));
  EXPECT_EQ(shape(TensorRole::kMlpUp), (Dims{32, 32}));
  EXPECT_EQ(shape(TensorRole::kMlpUpBias), (Dims{32}));
  EXPECT_EQ(shape(TensorRole::kMlpDown), (Dims{32, 32}));
  EXPECT_EQ(shape(TensorRole::kMlpDownBias), (Dims{32}));
}

// One tensor of q, k and v: a rank takes its heads of each third, not a third of the columns.
TEST(PartitionShapesTest, EachRankTakesItsHeadsOfQKAndVFromTheFusedTensor) {
  const TinyStage stage({.family = "gpt2", .tensor_parallel = 2});
  for (TensorRole role : {TensorRole::kQkv, TensorRole::kQkvBias}) {
    const Parameter& qkv = ParameterOf(stage, role, 0);
    ASSERT_EQ(qkv.parts.size(), 3u);
    for (int64_t i = 0; i < 3; ++i) {
      const Part& part = qkv.parts[i];
      EXPECT_EQ(part.rows, IsVector(*part.tensor) ? 1 : 32);
      EXPECT_EQ(part.columns, 16);
      EXPECT_EQ(Start(qkv, part, 0), 32 * i);
      EXPECT_EQ(Start(qkv, part, 1), 32 * i + 16);
      EXPECT_EQ(part.offset, 16 * i);
      EXPECT_EQ(part.row_stride, 48);
    }
  }
}

// Stored [out, in], with fewer heads of keys than of queries: shares of unequal blocks of rows.
TEST(PartitionShapesTest, Phi3sFusedTensorsGiveEachRankItsRowsOfEachPart) {
  const TinyStage stage({.family = "phi3", .tensor_parallel = 2});
  const auto check = [&](TensorRole role, const std::vector<int64_t>& begins,
                         const std::vector<int64_t>& rows) {
    const Parameter& fused = ParameterOf(stage, role, 1);
    ASSERT_EQ(fused.parts.size(), rows.size());
    int64_t offset = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const Part& part = fused.parts[i];
      EXPECT_EQ(part.rows, rows[i]);
      EXPECT_EQ(part.columns, 32);
      EXPECT_EQ(Start(fused, part, 0), begins[i]);
      EXPECT_EQ(Start(fused, part, 1), begins[i] + rows[i]);
      EXPECT_EQ(part.offset, offset);
      offset += rows[i] * 32;
    }
    EXPECT_EQ(fused.elements(), offset);
  };
  check(TensorRole::kQkv, {0, 32, 48}, {16, 8, 8});
  check(TensorRole::kMlpGate, {0, 48}, {24, 24});
}

TEST(PartitionShapesTest, RanksShareAHeadOfKeysWhereThereAreFewerHeadsThanRanks) {
  const TinyStage stage({.family = "qwen2", .tensor_parallel = 4});
  EXPECT_EQ(stage.parallel.tensor_block, 2);
  const Parameter& q = ParameterOf(stage, TensorRole::kQ, 0);
  EXPECT_EQ(q.shape, (Dims{8, 32}));
  EXPECT_FALSE(q.sums.tensor_block);
  for (TensorRole role : {TensorRole::kK, TensorRole::kKBias}) {
    const Parameter& kv = ParameterOf(stage, role, 0);
    ASSERT_EQ(kv.parts.size(), 2u);  // and the values
    EXPECT_EQ(kv.elements(), role == TensorRole::kK ? 2 * 8 * 32 : 2 * 8);
    EXPECT_EQ(kv.split_block, 2);
    EXPECT_TRUE(kv.sums.tensor_block);
    EXPECT_FALSE(kv.sums.tensor);
    for (const Part& part : kv.parts) {
      EXPECT_EQ(Start(kv, part, 0), 0);
      EXPECT_EQ(Start(kv, part, 1), 0);
      EXPECT_EQ(Start(kv, part, 2), 8);
      EXPECT_EQ(Start(kv, part, 3), 8);
    }
  }
  const v1::Group& group = stage.graph.groups.at(stage.parallel.groups.tensor_block);
  EXPECT_EQ(GroupMembers(stage.parallel.grid, group, 1), (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(GroupMembers(stage.parallel.grid, group, 2), (std::vector<uint32_t>{2, 3}));
}

TEST(PartitionShapesTest, TheVocabularyIsPaddedToEqualRows) {
  const v1::Program program = CompileTiny({.family = "llama", .tensor_parallel = 4});
  int tables = 0;
  for (const v1::StateRange& range : program.state()) {
    if (range.shape(0) != 61 || range.kind() != v1::WEIGHT) continue;
    ++tables;
    EXPECT_EQ(range.rows(), 16) << range.tensor();
    const auto last = RunsOf(range, program.grid(), {.tensor = 3});
    ASSERT_EQ(last.size(), 1u);
    EXPECT_EQ(last[0].begin, 48 * 32);
    EXPECT_EQ(last[0].elements, 13 * 32);
  }
  EXPECT_EQ(tables, 2);
}

TEST(PartitionSumsTest, NormsAreSummedOverTensorRanksOnlyWhereTokensAreSplit) {
  for (const bool split : {false, true}) {
    for (const std::string& family : Families()) {
      const TinyStage stage({.family = family, .tensor_parallel = 2, .sequence_parallel = split});
      for (const Parameter& parameter : stage.parameters.all()) {
        const TensorRole role = parameter.first().role;
        // Heads are split with and without sequence parallelism; positions are read from all
        // tokens.
        const bool of_heads = role == TensorRole::kQNorm || role == TensorRole::kKNorm;
        const bool summed =
            of_heads || (split && IsWhole(role) && role != TensorRole::kPositionEmbedding);
        EXPECT_EQ(parameter.sums.tensor, summed) << parameter.first().name;
      }
    }
  }
}

TEST(PartitionSumsTest, ATiedTableOnTwoStagesIsSummedAndCountedOnce) {
  for (int index : {0, 1}) {
    const TinyStage stage({.family = "qwen3", .pipeline_parallel = 2}, index);
    const Parameter& table = ParameterOf(stage, TensorRole::kTokenEmbedding);
    EXPECT_TRUE(table.sums.tied);
    EXPECT_EQ(table.sums.copies, 2);
    EXPECT_EQ(table.copy, index == 1);
  }
  const TinyStage untied({.family = "llama", .pipeline_parallel = 2});
  EXPECT_FALSE(ParameterOf(untied, TensorRole::kTokenEmbedding).sums.tied);
  const TinyStage alone({.family = "qwen3"});
  EXPECT_FALSE(ParameterOf(alone, TensorRole::kTokenEmbedding).sums.tied);
}

}  // namespace
}  // namespace terrace::compiler
