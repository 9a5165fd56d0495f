// Programs of optimizers that keep fewer moments than AdamW: what the checker refuses of them.
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer_rule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "proto/check/program_check.h"
#include "proto/program/op_codec.h"
#include "tests/unit/coordinator/compiler/factored_jobs.h"
#include "tests/unit/coordinator/compiler/layout_matrix.h"
#include "tests/unit/proto/check/mutate.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int kMoment1 = 2;

v1::Program Compiled(std::string_view rule, uint32_t zero) {
  LayoutCase c = {"llama", MatrixLayout()};
  c.layout.set_optimizer(std::string(rule));
  c.layout.set_data_parallel(zero > 0 ? 2 : 1);
  c.layout.set_zero_stage(zero);
  return CompileCase(c).value().at(0);
}

v1::Instruction* FirstUpdate(v1::Program* program) {
  for (v1::Instruction& i : *program->mutable_sequences(0)->mutable_instructions()) {
    if (i.compute().op() == "update") return &i;
  }
  return nullptr;
}

using Change = std::function<void(v1::Program*, v1::Instruction*)>;

std::string Refusal(std::string_view rule, uint32_t zero, const Change& change) {
  v1::Program program = Compiled(rule, zero);
  change(&program, FirstUpdate(&program));
  return std::string(CheckProgram(program).message());
}

class OptimizerRuleTest : public testing::TestWithParam<uint32_t> {};

INSTANTIATE_TEST_SUITE_P(Zero, OptimizerRuleTest, testing::Values(0, 1, 3));

TEST_P(OptimizerRuleTest, TheCompilersProgramsPass) {
  for (const kernels::OptimizerRow& row : kernels::kOptimizerRows) {
    if (row.whole_matrix || row.factored) continue;
    EXPECT_EQ(Refusal(row.name, GetParam(), [](v1::Program*, v1::Instruction*) {}), "") << row.name;
  }
}

// Rules with as many moments have the same operands, and other numbers.
TEST_P(OptimizerRuleTest, EveryUpdateIsByTheRuleOfTheProgram) {
  EXPECT_THAT(Refusal("lion", GetParam(),
                      [](v1::Program*, v1::Instruction* update) {
                        update->mutable_compute()->mutable_update()->set_rule(v1::MOMENTUM);
                      }),
              HasSubstr("by the rule momentum, the program says lion"));
  EXPECT_THAT(Refusal("adamw", GetParam(),
                      [](v1::Program* program, v1::Instruction*) {
                        program->mutable_rules()->set_optimizer(v1::ADAM);
                      }),
              HasSubstr("by the rule adamw, the program says adam"));
}

TEST_P(OptimizerRuleTest, ARuleHasTheMomentsThatItKeeps) {
  EXPECT_THAT(Refusal("lion", GetParam(),
                      [](v1::Program*, v1::Instruction* update) {
                        update->mutable_operands(kMoment1)->Clear();
                      }),
              HasSubstr("keep 1 moments: operand 'm' is absent"));
  EXPECT_THAT(Refusal("sgd", GetParam(),
                      [](v1::Program*, v1::Instruction* update) {
                        *update->mutable_operands(kMoment1) = update->operands(1);
                      }),
              HasSubstr("keep 0 moments: operand 'm' is there"));
  EXPECT_THAT(Refusal("momentum", GetParam(),
                      [](v1::Program* program, v1::Instruction*) {
                        for (v1::StateRange& range : *program->mutable_state()) {
                          if (range.kind() == v1::FIRST_MOMENT) range.set_kind(v1::SECOND_MOMENT);
                        }
                      }),
              HasSubstr("the rule momentum keeps 1 moment"));
}

TEST_P(OptimizerRuleTest, ARuleThatNobodyKnowsIsRefused) {
  EXPECT_THAT(Refusal("lion", GetParam(),
                      [](v1::Program*, v1::Instruction* update) {
                        update->mutable_compute()->mutable_update()->set_rule(
                            static_cast<v1::OptimizerRule>(99));
                      }),
              HasSubstr("attribute 'rule' is 99"));
}

// ---- rules of whole matrices
// ----------------------------------------------------------------------

v1::Program CompiledMuon(uint32_t pipeline, uint32_t ranks = 1) {
  LayoutCase c = {"llama", MatrixLayout()};
  c.layout.set_optimizer("muon");
  c.layout.set_pipeline_parallel(pipeline);
  c.layout.set_data_parallel(ranks);
  c.layout.set_zero_stage(ranks > 1 ? 1 : 0);
  v1::JobSpec spec = MatrixSpec();
  spec.mutable_train()->mutable_optimizer()->set_ns_steps(5);
  const Model model = MatrixModel(c.family);
  return Compile({.spec = &spec, .model = &model, .layout = c.layout}).value().at(0);
}

v1::Instruction* FirstMatrix(v1::Program* program) {
  for (v1::Instruction& i : *program->mutable_sequences(0)->mutable_instructions()) {
    if (i.compute().op() == "update_matrix") return &i;
  }
  return nullptr;
}

std::string MuonRefusal(const Change& change) {
  v1::Program program = CompiledMuon(1);
  change(&program, FirstMatrix(&program));
  return std::string(CheckProgram(program).message());
}

void ForMatrixOperands(v1::Instruction* update, const std::function<void(v1::Operand*)>& change) {
  for (int i = 0; i < 3; ++i) change(update->mutable_operands(i));
}

TEST(WholeMatrixRuleTest, TheCompilersProgramsPass) {
  for (const uint32_t pipeline : {1, 2}) {
    v1::Program program = CompiledMuon(pipeline);
    ASSERT_NE(FirstMatrix(&program), nullptr);
    ASSERT_NE(FirstUpdate(&program), nullptr);
    EXPECT_EQ(CheckProgram(program).message(), "");
  }
}

// Says that a tensor, [32, 32], is [16, 64].
void Reshape(std::string_view tensor, v1::Program* program) {
  for (v1::StateRange& range : *program->mutable_state()) {
    if (range.tensor() != tensor) continue;
    range.set_shape(0, 16);
    range.set_shape(1, 64);
    range.set_rows(16);
    range.set_columns(64);
    range.set_row_stride(64);
  }
  for (v1::Initializer& init : *program->mutable_initializers()) {
    if (init.tensor() != tensor) continue;
    init.set_shape(0, 16);
    init.set_shape(1, 64);
  }
}

TEST(WholeMatrixRuleTest, AnUpdateTakesOneMatrixAndAllOfIt) {
  constexpr char kNotOne[] = "are not one matrix of the model, all of it";
  static constexpr char kQ[] = "model.layers.0.self_attn.q_proj.weight";  // [32, 32]
  // The first half of its rows, and all of it where the model has it as [16, 64].
  EXPECT_THAT(MuonRefusal([](v1::Program*, v1::Instruction* update) {
                ForMatrixOperands(update, [](v1::Operand* operand) {
                  operand->set_shape(0, operand->shape(0) / 2);
                });
              }),
              HasSubstr(kNotOne));
  EXPECT_THAT(MuonRefusal([](v1::Program* program, v1::Instruction*) { Reshape(kQ, program); }),
              HasSubstr(kNotOne));
  // From the middle of q on, with rows of k.
  EXPECT_THAT(MuonRefusal([](v1::Program*, v1::Instruction* update) {
                ForMatrixOperands(update, [](v1::Operand* operand) {
                  operand->set_offset(operand->offset() + 16 * 32 * 4);
                });
              }),
              HasSubstr(kNotOne));
}

TEST(WholeMatrixRuleTest, TensorsAreUpdatedByTheRuleOfTheirInitializers) {
  const auto announce = [](const char* part, v1::OptimizerRule rule) {
    return MuonRefusal([&](v1::Program* program, v1::Instruction*) {
      for (v1::Initializer& init : *program->mutable_initializers()) {
        if (init.tensor().find(part) != std::string::npos) init.set_optimizer(rule);
      }
    });
  };
  EXPECT_THAT(announce("q_proj", v1::LION), HasSubstr("by the rule muon, the program says lion"));
  EXPECT_THAT(announce("norm", v1::ADAM), HasSubstr("by the rule adamw, the program says adam"));
  EXPECT_THAT(announce("norm", v1::MUON), HasSubstr("the rule muon keeps 1 moment"));
  EXPECT_THAT(announce("norm", static_cast<v1::OptimizerRule>(99)), HasSubstr("optimizer 99"));
}

// ---- whole matrices that are dealt
// ----------------------------------------------------------------------

// The 4 layers of the model on so many ranks.
std::string DealtRefusal(uint32_t ranks, const Change& change) {
  v1::Program program = CompiledMuon(1, ranks);
  change(&program, FirstMatrix(&program));
  return std::string(CheckProgram(program).message());
}

void MoveState(v1::Program* program, std::string_view tensor, v1::StateKind kind, int64_t bytes) {
  for (v1::StateRange& range : *program->mutable_state()) {
    if (range.tensor() == tensor && range.kind() == kind) range.set_offset(range.offset() + bytes);
  }
}

int64_t ShardBytes(const v1::Program& program, std::string_view tensor) {
  for (const v1::StateRange& range : program.state()) {
    if (range.tensor() == tensor) return range.shard_elements() * 4;
  }
  return 0;
}

TEST(DealtMatricesTest, TheCompilersProgramsPass) {
  for (const uint32_t ranks : {2, 3, 4, 6, 8}) {
    v1::Program program = CompiledMuon(1, ranks);
    ASSERT_NE(FirstMatrix(&program), nullptr);
    EXPECT_EQ(CheckProgram(program).message(), "") << ranks;
  }
}

TEST(DealtMatricesTest, EveryRankUpdatesAWholeMatrixOfItsOwn) {
  constexpr char kNotOne[] = "are not one matrix of the model, all of it, on every rank";
  // Half of a matrix, and from the middle of one on.
  EXPECT_THAT(DealtRefusal(2,
                           [](v1::Program*, v1::Instruction* update) {
                             ForMatrixOperands(update, [](v1::Operand* operand) {
                               operand->set_shape(0, operand->shape(0) / 2);
                             });
                           }),
              HasSubstr(kNotOne));
  EXPECT_THAT(DealtRefusal(2,
                           [](v1::Program*, v1::Instruction* update) {
                             ForMatrixOperands(update, [](v1::Operand* operand) {
                               operand->set_offset(operand->offset() + 32 * 4);
                             });
                           }),
              HasSubstr(kNotOne));
  // One rank's matrix has other rows.
  EXPECT_THAT(DealtRefusal(4,
                           [](v1::Program* program, v1::Instruction*) {
                             Reshape("model.layers.2.self_attn.q_proj.weight", program);
                           }),
              HasSubstr(kNotOne));
  // Of six ranks two have none. A matrix lies half with one of these, or all of it.
  constexpr char kLast[] = "model.layers.3.mlp.down_proj.weight";
  const auto moved = [&](int64_t halves) {
    return DealtRefusal(6, [&](v1::Program* program, v1::Instruction*) {
      for (const v1::StateKind kind : {v1::WEIGHT, v1::FIRST_MOMENT})
        MoveState(program, kLast, kind, ShardBytes(*program, kLast) / 2 * halves);
    });
  };
  EXPECT_THAT(moved(1), HasSubstr("pieces of state that do not belong together"));
  EXPECT_THAT(moved(2), HasSubstr("reads beyond the edge of a tensor"));
}

// Two ranks' matrices change places, and their moments stay.
TEST(DealtMatricesTest, MomentsAreThoseOfTheRanksMatrix) {
  constexpr char kFirst[] = "model.layers.1.mlp.down_proj.weight";
  constexpr char kSecond[] = "model.layers.2.mlp.down_proj.weight";
  EXPECT_THAT(DealtRefusal(4,
                           [&](v1::Program* program, v1::Instruction*) {
                             const int64_t shard = ShardBytes(*program, kFirst);
                             MoveState(program, kFirst, v1::WEIGHT, shard);
                             MoveState(program, kSecond, v1::WEIGHT, -shard);
                           }),
              HasSubstr("is not the FIRST_MOMENT of 'model.layers."));
}

// What every rank keeps is one gradient, the sum of all, and its squares count once.
TEST(DealtMatricesTest, WhatEveryRankKeepsCountsOnce) {
  EXPECT_THAT(DealtRefusal(3,
                           [](v1::Program* program, v1::Instruction*) {
                             v1::Sequence* train = program->mutable_sequences(0);
                             for (int i = 0; i < train->instructions_size(); ++i) {
                               const v1::Instruction& sum = train->instructions(i);
                               const bool kept = sum.text().find(".kept") != std::string::npos;
                               if (!kept || sum.collective().kind() != v1::ALL_REDUCE) continue;
                               return RemoveInstruction(i, train);
                             }
                           }),
              HasSubstr("which differs over DATA_SHARD: it was not summed over that"));
  EXPECT_THAT(DealtRefusal(3,
                           [](v1::Program* program, v1::Instruction*) {
                             for (v1::Instruction& i :
                                  *program->mutable_sequences(0)->mutable_instructions()) {
                               const bool kept = i.text().find(".kept") != std::string::npos;
                               if (i.compute().op() == "squared_norm" && kept)
                                 i.mutable_compute()->mutable_scale()->set_scale(1);
                             }
                           }),
              HasSubstr("count them 3 times, must be once"));
}

// ---- rules that keep means of rows and columns
// -----------------------------------------------------

// Operands of update_factored.
constexpr int kFirst = 2, kSecond = 3, kRows = 4, kColumns = 5;

v1::Program CompiledFactored(std::string_view rule, double beta1 = 0, uint32_t pipeline = 1,
                             uint32_t ranks = 1) {
  LayoutCase c = {"llama", MatrixLayout()};
  c.layout.set_optimizer(std::string(rule));
  c.layout.set_pipeline_parallel(pipeline);
  c.layout.set_data_parallel(ranks);
  c.layout.set_zero_stage(ranks > 1 ? 1 : 0);
  v1::JobSpec spec = MatrixSpec();
  SetFactored(rule, beta1, spec.mutable_train()->mutable_optimizer());
  const Model model = MatrixModel(c.family);
  return Compile({.spec = &spec, .model = &model, .layout = c.layout}).value().at(0);
}

// The first update of a matrix of which there is another of the same shape, or of a vector.
v1::Instruction* FirstFactored(v1::Program* program, bool matrix) {
  for (v1::Instruction& i : *program->mutable_sequences(0)->mutable_instructions()) {
    if (i.compute().op() != "update_factored") continue;
    const bool is_vector = i.operands(kSecond).access() != v1::ACCESS_UNSPECIFIED;
    if (matrix ? i.text().find("k_proj") != std::string::npos : is_vector) return &i;
  }
  return nullptr;
}

std::string FactoredRefusal(const Change& change, bool matrix = true, double beta1 = 0) {
  v1::Program program = CompiledFactored("adafactor", beta1);
  change(&program, FirstFactored(&program, matrix));
  return std::string(CheckProgram(program).message());
}

TEST(FactoredRuleTest, TheCompilersProgramsPass) {
  for (const char* rule : {"adafactor", "came"}) {
    for (const double beta1 : {0.0, 0.9}) {
      for (const uint32_t pipeline : {1, 2}) {
        v1::Program program = CompiledFactored(rule, beta1, pipeline);
        ASSERT_NE(FirstFactored(&program, true), nullptr);
        ASSERT_NE(FirstFactored(&program, false), nullptr);
        EXPECT_EQ(CheckProgram(program).message(), "") << rule;
      }
    }
  }
}

TEST(FactoredRuleTest, AnUpdateTakesOneTensorAndAllOfIt) {
  EXPECT_THAT(FactoredRefusal([](v1::Program*, v1::Instruction* update) {
                for (const int i : {0, 1, kRows}) {
                  v1::Operand* operand = update->mutable_operands(i);
                  operand->set_shape(0, operand->shape(0) / 2);
                }
              }),
              HasSubstr("are not one tensor of the model, all of it"));
  EXPECT_THAT(FactoredRefusal(
                  [](v1::Program*, v1::Instruction* update) {
                    for (const int i : {0, 1, kSecond}) {
                      v1::Operand* operand = update->mutable_operands(i);
                      operand->set_shape(1, operand->shape(1) / 2);
                    }
                  },
                  /*matrix=*/false),
              HasSubstr("are not one tensor of the model, all of it"));
}

// q, k and v lie one behind the other, and so do their means.
TEST(FactoredRuleTest, MeansAreThoseOfTheTensor) {
  EXPECT_THAT(FactoredRefusal([](v1::Program*, v1::Instruction* update) {
                v1::Operand* rows = update->mutable_operands(kRows);
                rows->set_offset(rows->offset() + rows->shape(0) * 4);
              }),
              HasSubstr("operand 4 is not the ROW_MOMENT of 'model.layers.0.self_attn.k_proj"));
  EXPECT_THAT(FactoredRefusal([](v1::Program*, v1::Instruction* update) {
                v1::Operand* columns = update->mutable_operands(kColumns);
                columns->set_offset(columns->offset() + 4);
              }),
              HasSubstr("operand 5 is not the COLUMN_MOMENT of"));
  EXPECT_THAT(FactoredRefusal(
                  [](v1::Program*, v1::Instruction* update) {
                    v1::Operand* v = update->mutable_operands(kSecond);
                    v->set_offset(v->offset() + v->shape(1) * 4);
                  },
                  /*matrix=*/false),
              HasSubstr("is not the SECOND_MOMENT of"));
}

// Where tensors are dealt, each rank's means are those of the tensor that it has.
TEST(FactoredRuleTest, MeansAreDealtWithTheirTensors) {
  const auto refusal = [](uint32_t ranks, const std::function<void(v1::Program*)>& change) {
    v1::Program program = CompiledFactored("came", 0.9, 1, ranks);
    change(&program);
    return std::string(CheckProgram(program).message());
  };
  for (const uint32_t ranks : {2, 3, 4, 6})
    EXPECT_EQ(refusal(ranks, [](v1::Program*) {}), "") << ranks;
  const auto ranges_of = [](v1::Program* program, std::string_view tensor, v1::StateKind kind) {
    for (v1::StateRange& range : *program->mutable_state()) {
      if (range.tensor() == tensor && range.kind() == kind) return &range;
    }
    return static_cast<v1::StateRange*>(nullptr);
  };
  // Two ranks' means change places.
  EXPECT_THAT(refusal(4,
                      [&](v1::Program* program) {
                        v1::StateRange* a = ranges_of(
                            program, "model.layers.1.self_attn.o_proj.weight", v1::ROW_MOMENT);
                        v1::StateRange* b = ranges_of(
                            program, "model.layers.2.self_attn.o_proj.weight", v1::ROW_MOMENT);
                        const int64_t offset = a->offset();
                        a->set_offset(b->offset());
                        b->set_offset(offset);
                      }),
              HasSubstr("is not the ROW_MOMENT of 'model.layers."));
  // Those of the last layer are said to be on a rank that has no such tensor.
  EXPECT_THAT(refusal(6,
                      [&](v1::Program* program) {
                        v1::StateRange* last = ranges_of(
                            program, "model.layers.3.self_attn.o_proj.weight", v1::COLUMN_ERROR);
                        last->set_offset(last->offset() + last->shard_elements() * 4);
                      }),
              HasSubstr("is not the COLUMN_ERROR of 'model.layers."));
  // Three ranks keep one of four layers: its means are no shards.
  EXPECT_THAT(refusal(3,
                      [&](v1::Program* program) {
                        const v1::StateRange kept = *ranges_of(
                            program, "model.layers.3.self_attn.o_proj.weight", v1::ROW_MOMENT);
                        const int64_t elements =
                            program->buffers(static_cast<int>(kept.buffer())).shape(0);
                        for (v1::StateRange& range : *program->mutable_state()) {
                          if (range.buffer() == kept.buffer()) range.set_shard_elements(elements);
                        }
                      }),
              HasSubstr("is not the ROW_MOMENT of 'model.layers.3."));
}

TEST(FactoredRuleTest, EveryStateOfATensorIsUpdated) {
  const auto without_moment = [](v1::Program*, v1::Instruction* update) {
    update->mutable_operands(kFirst)->Clear();
    update->mutable_compute()->mutable_update()->set_beta1(0);
  };
  EXPECT_THAT(FactoredRefusal(without_moment, true, 0.9),
              HasSubstr("does not update just the states that the rule adafactor keeps of"));
}

TEST(FactoredRuleTest, StatesAreThoseThatTheRuleKeeps) {
  const auto change = [](v1::StateKind kind, const std::function<void(v1::StateRange*)>& to,
                         double beta1 = 0) {
    return FactoredRefusal(
        [&](v1::Program* program, v1::Instruction*) {
          for (v1::StateRange& range : *program->mutable_state()) {
            if (range.kind() != kind) continue;
            to(&range);
            return;
          }
        },
        true, beta1);
  };
  const auto turn_into = [](v1::StateKind kind) {
    return [kind](v1::StateRange* range) { range->set_kind(kind); };
  };
  EXPECT_THAT(change(v1::ROW_MOMENT, turn_into(v1::ROW_ERROR)),
              HasSubstr("the rule adafactor keeps no such state of it"));
  EXPECT_THAT(change(v1::FIRST_MOMENT, turn_into(v1::FIRST_MOMENT_SCALES), 0.9),
              HasSubstr("the rule adafactor keeps no such state of it"));
  EXPECT_THAT(change(v1::ROW_MOMENT,
                     [](v1::StateRange* range) {
                       range->set_shape(0, range->shape(0) - 1);
                       range->set_columns(range->columns() - 1);
                     }),
              HasSubstr("elements, one a row of its tensor"));
  v1::Program program = Compiled("adamw", 0);
  program.mutable_state(0)->set_kind(v1::ROW_MOMENT);
  EXPECT_NE(CheckProgram(program).message(), "");
}

TEST(FactoredRuleTest, BetaFollowsFromTheStepWithAdafactorAlone) {
  const auto rules = [](std::string_view rule, double decay, bool relative) {
    v1::Program program = rule == "adamw" ? Compiled(rule, 0) : CompiledFactored(rule);
    program.mutable_rules()->set_beta2_decay(decay);
    program.mutable_rules()->set_relative_step(relative);
    return std::string(CheckProgram(program).message());
  };
  EXPECT_EQ(rules("adafactor", -0.5, true), "");
  EXPECT_THAT(rules("adafactor", 0, false), HasSubstr("beta2_decay: got 0, must be below 0"));
  EXPECT_THAT(rules("came", -0.8, false), HasSubstr("must be 0 but with ADAFACTOR"));
  EXPECT_THAT(rules("adamw", 0, true), HasSubstr("must be false but with ADAFACTOR"));
}

// Chunks of states that rest on the host make several updates of one tensor.
TEST(OptimizerRateTest, TheTensorsPiecesAreUpdatedAlike) {
  LayoutCase c = {"llama", MatrixLayout()};
  c.layout.set_chunk_bytes(4096);
  v1::Offload* offload = c.layout.mutable_offload();
  for (v1::TierShares* shares :
       {offload->mutable_parameter(), offload->mutable_gradient(), offload->mutable_activation()})
    shares->set_device(1);
  offload->mutable_optimizer()->set_device(0);
  offload->mutable_optimizer()->set_host(1);
  const v1::Program whole = CompileCase(c).value().at(0);
  ASSERT_TRUE(CheckProgram(whole).ok());
  for (const bool rate : {true, false}) {
    v1::Program program = whole;
    v1::UpdateAttrs* update = FirstUpdate(&program)->mutable_compute()->mutable_update();
    rate ? update->set_lr_scale(0.5f) : update->set_weight_decay(0.25f);
    EXPECT_THAT(std::string(CheckProgram(program).message()),
                HasSubstr(rate ? "another part of it with 0.5 and 0.1"
                               : "another part of it with 1 and 0.25"));
  }
}

}  // namespace
}  // namespace terrace
