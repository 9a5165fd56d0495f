// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/state/weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/compiler/pack/liveness.h"
#include "tests/unit/coordinator/compiler/tiny_stage.h"

namespace terrace::compiler {
namespace {

class WeightsTest : public testing::Test {
 protected:
  void Build(const TinyJob& job) {
    stage_ = std::make_unique<TinyStage>(job);
    stage_->graph.sequences.push_back({.name = "train"});
    builder_ = std::make_unique<Builder>(&stage_->graph, 0);
    weights_ = std::make_unique<Weights>(stage_->parameters, stage_->parallel, 0, builder_.get());
  }
  std::unique_ptr<TinyStage> stage_;
  std::unique_ptr<Builder> builder_;
  std::unique_ptr<Weights> weights_;
};

TEST_F(WeightsTest, AreThereUnlessSharded) {
  for (uint32_t zero : {0, 1, 2}) {
    Build({.family = "llama", .data_parallel = 2, .zero_stage = zero});
    for (TensorRole role : {TensorRole::kQ, TensorRole::kMlpDown, TensorRole::kMlpNorm}) {
      const Slice weight = weights_->Of(role, 1);
      EXPECT_EQ(stage_->graph.values[weight.value].lifetime, v1::PERSISTENT);
    }
    EXPECT_TRUE(stage_->nodes().empty());
  }
}

TEST_F(WeightsTest, AUnitIsGatheredOnFirstUseOnly) {
  Build({.family = "llama", .data_parallel = 2, .zero_stage = 3});
  const Slice q = weights_->Of(TensorRole::kQ, 0);
  const Slice down = weights_->Of(TensorRole::kMlpDown, 0);
  ASSERT_EQ(stage_->nodes().size(), 1u);
  EXPECT_EQ(stage_->Root(q), stage_->Root(down));
  const Node& gather = stage_->nodes()[0];
  EXPECT_TRUE(GathersWeights(stage_->graph, gather));
  EXPECT_FALSE(gather.has_rule);
  EXPECT_EQ(gather.operands[1].shape.Elements(), 2 * gather.operands[0].shape.Elements());
  EXPECT_EQ(weights_->Of(TensorRole::kQ, 0).value, q.value);
  weights_->Forget();
  EXPECT_NE(weights_->Of(TensorRole::kQ, 0).value, q.value);
  EXPECT_EQ(stage_->nodes().size(), 2u);
}

TEST_F(WeightsTest, CodesTravelAndAreDecodedWhereTheyAreUsed) {
  Build({.family = "llama",
         .precision = "bf16",
         .data_parallel = 2,
         .zero_stage = 3,
         .gather_format = "int8"});
  const Slice q = weights_->Of(TensorRole::kQ, 0);
  const auto& nodes = stage_->nodes();
  ASSERT_EQ(nodes.size(), 4u);  // encode, the scales, the codes, decode
  for (const Node& node : nodes) EXPECT_FALSE(node.has_rule);
  for (int i : {0, 1, 2}) EXPECT_TRUE(GathersWeights(stage_->graph, nodes[i])) << i;
  EXPECT_TRUE(DecodesWeights(stage_->graph, nodes[3]));
  EXPECT_EQ(nodes[2].operands[1].value, nodes[3].operands[0].value);
  EXPECT_EQ(nodes[2].operands[1].shape.dtype, kernels::DType::kU8);
  EXPECT_EQ(stage_->graph.Root(q).value, nodes[3].operands[2].value);
  const int64_t elements = nodes[2].operands[1].shape.Elements();
  EXPECT_EQ(nodes[3].operands[2].shape.Elements(), elements);
  EXPECT_EQ(nodes[1].operands[1].shape.Elements() *
                std::get<kernels::BlockAttrs>(nodes[3].compute()->attrs).block,
            elements);
  // Norms are whole: nothing is gathered for them.
  weights_->Of(TensorRole::kMlpNorm, 0);
  EXPECT_EQ(stage_->nodes().size(), 4u);
}

// Where they lie in the gathered memory is where the shards put them.
TEST_F(WeightsTest, GatheredWeightsLieAsInTheirUnit) {
  Build({.family = "qwen2", .data_parallel = 4, .zero_stage = 3});
  for (TensorRole role :
       {TensorRole::kQ, TensorRole::kAttentionOut, TensorRole::kMlpGate, TensorRole::kMlpDown}) {
    const Slice weight = weights_->Of(role, 1);
    const Parameter& parameter = stage_->parameters.all().at(stage_->parameters.Find(role, 1));
    EXPECT_EQ(stage_->graph.Root(weight).offset, parameter.offset);
    EXPECT_EQ(stage_->graph.values[weight.value].shape, parameter.shape);
    EXPECT_EQ(parameter.weight, kNone);
  }
}

TEST_F(WeightsTest, VectorsAndSmallUnitsStayWhole) {
  Build({.family = "llama", .data_parallel = 2, .zero_stage = 3});
  EXPECT_EQ(stage_->graph.values[weights_->Of(TensorRole::kMlpNorm, 0).value].lifetime,
            v1::PERSISTENT);
  EXPECT_TRUE(stage_->nodes().empty());
  // A layer of llama has 32 x 64 + 32 x 32 + 32 x 96 + 48 x 32 = 7680 elements, a table 1952.
  Build({.family = "llama", .data_parallel = 2, .zero_stage = 3, .persistent_parameters = 5000});
  weights_->Of(TensorRole::kLmHead);
  EXPECT_TRUE(stage_->nodes().empty());
  weights_->Of(TensorRole::kQ, 0);
  EXPECT_EQ(stage_->nodes().size(), 1u);
}

// Tokens that are gathered, and weights that stay after the optimizer's step, are something else.
TEST_F(WeightsTest, OtherGathersAreToldApart) {
  Build({.family = "llama",
         .data_parallel = 2,
         .tensor_parallel = 2,
         .sequence_parallel = true,
         .zero_stage = 2});
  const Unit& unit = stage_->parameters.units()[0];
  builder_->Collective(v1::ALL_GATHER, 0, stage_->graph.Whole(unit.master),
                       stage_->graph.Whole(unit.weights), "after the step");
  const Slice x = builder_->NewValue("x", v1::ACTIVATION, kernels::DType::kF32, {4});
  const Slice y = builder_->NewValue("y", v1::ACTIVATION, kernels::DType::kF32, {8});
  builder_->Collective(v1::ALL_GATHER, 0, x, y, "tokens");
  for (const Node& node : stage_->nodes()) {
    EXPECT_FALSE(GathersWeights(stage_->graph, node)) << node.text;
  }
}

// ---- element types

std::map<std::string, v1::DType> Types(const v1::Program& program) {
  std::map<std::string, v1::DType> types;
  for (const v1::Buffer& buffer : program.buffers()) types[buffer.name()] = buffer.dtype();
  return types;
}

TEST(WeightTypesTest, WhatPassesReadHasTheBitsOfProducts) {
  const std::pair<const char*, v1::DType> precisions[] = {{"fp32", v1::F32},
                                                          {"tf32", v1::F32},
                                                          {"bf16", v1::BF16},
                                                          {"fp16", v1::F16},
                                                          {"fp8", v1::F32}};
  for (const auto& [precision, type] : precisions) {
    for (const uint32_t zero : {0, 1, 2, 3}) {
      SCOPED_TRACE(absl::StrCat(precision, " zero ", zero));
      const auto types = Types(CompileTiny(
          {.family = "llama", .precision = precision, .data_parallel = 2, .zero_stage = zero}));
      const v1::DType shared = zero == 0 ? v1::F32 : type;
      if (zero == 3) {
        EXPECT_EQ(types.at("mb0.gathered.layer0"), shared);
        EXPECT_EQ(types.contains("rounded.layer0"), shared != v1::F32);
      } else {
        EXPECT_EQ(types.at("weights.layer0"), shared);
        EXPECT_EQ(types.at("weights.head"), shared);
        EXPECT_EQ(types.at("weights.embedding"), shared);
      }
      if (zero == 0) continue;
      EXPECT_EQ(types.at("master.layer0"), v1::F32);
      EXPECT_EQ(types.at("first_moment.layer0"), v1::F32);
      EXPECT_EQ(types.at("weights.vectors"), v1::F32);
    }
  }
}

TEST(WeightTypesTest, TablesWhoseRowsAreAddedStayAsTheyAre) {
  for (const uint32_t zero : {1, 2}) {
    const auto types = Types(CompileTiny(
        {.family = "gpt2", .precision = "bf16", .data_parallel = 2, .zero_stage = zero}));
    EXPECT_EQ(types.at("weights.embedding"), v1::F32);
    EXPECT_EQ(types.at("weights.positions"), v1::F32);
    EXPECT_EQ(types.at("weights.layer1"), v1::BF16);
  }
}

// The host rounds what rests there, so that half of it crosses the link; what comes for each use
// comes as it rests.
TEST(WeightTypesTest, TheLinkToTheDeviceCarriesRoundedWeights) {
  for (const v1::Tier tier : {v1::HOST, v1::NVME}) {
    const v1::Program program = CompileTiny({.family = "llama",
                                             .precision = "bf16",
                                             .data_parallel = 2,
                                             .zero_stage = 1,
                                             .sizes = {.hidden = 64},
                                             .gradient = tier,
                                             .optimizer = tier});
    int rounded = 0, fetched = 0;
    for (const v1::Instruction& instruction : SequenceOf(program, "train").instructions()) {
      if (instruction.text() == "round layer0") {
        EXPECT_EQ(program.streams(instruction.stream()).kind(), v1::HOST_COMPUTE);
        ++rounded;
      }
      if (instruction.text() == "send rounded layer0") {
        EXPECT_EQ(instruction.operands(0).dtype(), v1::BF16);
        ++fetched;
      }
    }
    EXPECT_GT(rounded, 0);
    EXPECT_EQ(fetched, rounded);
  }
  const auto types = Types(CompileTiny({.family = "llama",
                                        .precision = "bf16",
                                        .data_parallel = 2,
                                        .zero_stage = 3,
                                        .sizes = {.hidden = 64},
                                        .parameter = v1::HOST,
                                        .gradient = v1::HOST,
                                        .optimizer = v1::HOST}));
  EXPECT_EQ(types.at("mb0.gathered.layer0"), v1::F32);
}

// A parameter's bytes, of all that lasts: those of docs/layouts.md.
TEST(WeightTypesTest, BytesThatLastAreThoseOfTheFormulas) {
  for (const uint32_t ranks : {2, 4}) {
    for (const uint32_t zero : {1, 2, 3}) {
      const v1::Program program = CompileTiny({.family = "llama",
                                               .precision = "bf16",
                                               .data_parallel = ranks,
                                               .zero_stage = zero,
                                               .sizes = {.hidden = 64, .intermediate = 64}});
      std::map<std::string, int64_t> bytes;  // of the first layer's matrices
      for (const v1::Buffer& buffer : program.buffers()) {
        if (buffer.lifetime() != v1::PERSISTENT || !buffer.name().ends_with(".layer0")) continue;
        bytes[buffer.name().substr(0, buffer.name().find('.'))] = buffer.bytes();
      }
      const int64_t elements = 64 * 128 + 64 * 64 + 64 * 128 + 64 * 64;
      std::map<std::string, int64_t> expected = {{"master", 4 * elements / ranks},
                                                 {"first_moment", 4 * elements / ranks},
                                                 {"second_moment", 4 * elements / ranks}};
      if (zero == 3) {
        expected["rounded"] = 2 * elements / ranks;
      } else {
        expected["weights"] = 2 * elements;
      }
      EXPECT_EQ(bytes, expected) << "zero " << zero << ", " << ranks << " ranks";
    }
  }
}

// What a program gathers, by the name of the unit.
class GatheredTest : public testing::Test {
 protected:
  struct Gather {
    int index = 0;
    std::string unit;
    v1::Phase phase;
    int micro_batch = 0;
  };
  void Build(const TinyJob& job) {
    program_ = CompileTiny(job);
    gathers_.clear();
    const v1::Sequence& train = SequenceOf(program_, "train");
    for (int i = 0; i < train.instructions_size(); ++i) {
      const v1::Instruction& instruction = train.instructions(i);
      if (instruction.collective().kind() != v1::ALL_GATHER ||
          program_.groups(instruction.collective().group()).name() != "shard") {
        continue;
      }
      gathers_.push_back({i, instruction.text().substr(std::string("gather ").size()),
                          instruction.phase(), instruction.micro_batch()});
    }
  }
  std::map<std::string, int> CountByUnit(v1::Phase phase) const {
    std::map<std::string, int> counts;
    for (const Gather& gather : gathers_) counts[gather.unit] += gather.phase == phase;
    return counts;
  }
  const v1::Instruction& At(int i) const { return SequenceOf(program_, "train").instructions(i); }

  v1::Program program_;
  std::vector<Gather> gathers_;
};

TEST_F(GatheredTest, StagesOneAndTwoGatherEachUnitOnceAStep) {
  for (uint32_t zero : {1, 2}) {
    for (const std::string& family : Families()) {
      Build({.family = family, .data_parallel = 2, .micro_batches = 3, .zero_stage = zero});
      EXPECT_GE(gathers_.size(), 4u);
      for (const auto& [unit, count] : CountByUnit(v1::FORWARD)) {
        EXPECT_EQ(count, 1) << family << " " << unit;
      }
    }
  }
}

TEST_F(GatheredTest, StageThreeGathersALayerOnceForwardAndOnceBackwardInEachMicroBatch) {
  for (const char* recompute : {"none", "selective", "block", "full"}) {
    for (const std::string& family : Families()) {
      Build({.family = family,
             .data_parallel = 2,
             .micro_batches = 3,
             .zero_stage = 3,
             .recompute = recompute});
      std::map<std::pair<std::string, int>, int> forward, backward;
      for (const Gather& gather : gathers_) {
        if (!gather.unit.starts_with("layer")) continue;
        EXPECT_NE(gather.phase, v1::OPTIMIZER_STEP);
        const bool is_forward = gather.phase == v1::FORWARD;
        ++(is_forward ? forward : backward)[{gather.unit, gather.micro_batch}];
      }
      EXPECT_EQ(forward.size(), 2u * 3) << family;
      EXPECT_EQ(backward.size(), 2u * 3) << family;
      for (const auto& counts : {forward, backward}) {
        for (const auto& [key, count] : counts) {
          EXPECT_EQ(count, 1) << family << " " << recompute << " " << key.first;
        }
      }
    }
  }
}

// A table is gathered where it is read: for the look-up, and for the head with its gradient.
TEST_F(GatheredTest, StageThreeGathersTablesOnceAUse) {
  Build({.family = "llama", .data_parallel = 2, .micro_batches = 3, .zero_stage = 3});
  EXPECT_EQ(CountByUnit(v1::FORWARD)["embedding"], 3);
  EXPECT_EQ(CountByUnit(v1::FORWARD)["head"], 3);
  EXPECT_EQ(CountByUnit(v1::RECOMPUTE)["embedding"], 0);
  EXPECT_EQ(CountByUnit(v1::RECOMPUTE)["head"], 0);
}

// The weights of one layer are on their way while the layer before it is computed, and no earlier:
// two layers' weights are there at a time.
TEST_F(GatheredTest, GathersStandOneLayerAheadOfTheirUse) {
  for (const char* recompute : {"none", "selective", "block"}) {
    Build({.family = "llama",
           .data_parallel = 2,
           .zero_stage = 3,
           .recompute = recompute,
           .sizes = {.layers = 6}});
    // The layers whose computation stands between a gather and its first use.
    for (const Gather& gather : gathers_) {
      if (!gather.unit.starts_with("layer")) continue;
      const int layer = std::stoi(gather.unit.substr(5));
      const int before = gather.phase == v1::FORWARD ? layer - 1 : layer + 1;
      std::set<int> between;
      for (int i = gather.index + 1; At(i).layer() != layer || !At(i).has_compute(); ++i) {
        if (At(i).has_compute()) between.insert(At(i).layer());
      }
      const bool at_an_end = before < 0 || before > 5;
      EXPECT_EQ(between, std::set<int>{at_an_end ? -1 : before})
          << recompute << " " << gather.unit << " " << v1::Phase_Name(gather.phase);
    }
  }
}

// The codes of the next layer, which are on their way by then, are waited for by nobody else.
TEST_F(GatheredTest, WeightsAreDecodedAsSoonAsTheirCodesAreThere) {
  for (const char* recompute : {"none", "block"}) {
    Build({.family = "llama",
           .precision = "bf16",
           .data_parallel = 2,
           .micro_batches = 2,
           .zero_stage = 3,
           .recompute = recompute,
           .sizes = {.layers = 6},
           .gather_format = "int8"});
    int decoded = 0;
    for (const v1::Instruction& decode : SequenceOf(program_, "train").instructions()) {
      if (!decode.text().starts_with("decode layer")) continue;
      ++decoded;
      const std::string unit = decode.text().substr(std::string("decode ").size());
      for (const uint32_t wait : decode.waits()) {
        if (At(static_cast<int>(wait)).collective().kind() != v1::ALL_GATHER) continue;
        EXPECT_EQ(At(static_cast<int>(wait)).text(), "gather " + unit) << recompute;
      }
    }
    EXPECT_EQ(decoded, 2 * 2 * 6) << "forward and backward";
  }
}

TEST_F(GatheredTest, WeightsOfTwoLayersAreThereAtATime) {
  for (const char* recompute : {"none", "selective", "block"}) {
    Build({.family = "llama",
           .data_parallel = 2,
           .micro_batches = 2,
           .zero_stage = 3,
           .recompute = recompute,
           .sizes = {.layers = 8}});
    const v1::Sequence& train = SequenceOf(program_, "train");
    const std::vector<Life> lives = Liveness(program_, train);
    std::vector<int> alive(2 * train.instructions_size() + 2);
    for (int i = 0; i < program_.buffers_size(); ++i) {
      if (program_.buffers(i).name().find("gathered.layer") == std::string::npos) continue;
      for (int64_t t = lives[i].begin; t < lives[i].end; ++t) ++alive.at(t);
    }
    const int most = *std::max_element(alive.begin(), alive.end());
    EXPECT_EQ(most, 2) << recompute;
  }
}

}  // namespace
}  // namespace terrace::compiler
