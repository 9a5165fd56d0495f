// Programs whose weights are rounded stochastically, or whose gradients are bf16: what the checker
// refuses of them.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "proto/check/program_check.h"
#include "tests/unit/coordinator/compiler/layout_matrix.h"

namespace terrace {
namespace {

using testing::HasSubstr;

v1::Program Compiled() {
  LayoutCase c = {"llama", MatrixLayout()};
  c.layout.set_precision("bf16");
  c.layout.set_stochastic_rounding(true);
  return CompileCase(c).value().at(0);
}

v1::Instruction* FirstUpdate(v1::Program* program) {
  for (v1::Instruction& i : *program->mutable_sequences(0)->mutable_instructions()) {
    if (i.compute().op() == "update_stochastic") return &i;
  }
  return nullptr;
}

// Of the first update's rounding; empty: nothing is refused.
std::string Refusal(const std::function<void(v1::Program*, v1::Instruction*)>& change) {
  v1::Program program = Compiled();
  change(&program, FirstUpdate(&program));
  return std::string(CheckProgram(program).message());
}

TEST(RoundingCheckTest, TheCompilersProgramPasses) {
  EXPECT_EQ(Refusal([](v1::Program*, v1::Instruction*) {}), "");
}

TEST(RoundingCheckTest, TheBitsOfOtherElementsAreRefused) {
  EXPECT_THAT(Refusal([](v1::Program*, v1::Instruction* update) {
                auto* rounding = update->mutable_compute()->mutable_update()->mutable_rounding();
                rounding->set_first(rounding->first() + 8);
              }),
              HasSubstr("rounds with the bits of element 8 of buffer"));
  EXPECT_THAT(Refusal([](v1::Program*, v1::Instruction* update) {
                auto* rounding = update->mutable_compute()->mutable_update()->mutable_rounding();
                rounding->set_buffer(rounding->buffer() + 1);
              }),
              HasSubstr("its weights are element"));
  EXPECT_THAT(Refusal([](v1::Program*, v1::Instruction* update) {
                update->mutable_compute()->mutable_update()->mutable_rounding()->set_first(-8);
              }),
              HasSubstr("attribute 'rounding.first' is -8, must not be negative"));
}

TEST(RoundingCheckTest, GradientsAreReadAsTheTypeThatTheyHave) {
  LayoutCase c = {"llama", MatrixLayout()};
  c.layout.set_precision("bf16");
  c.layout.set_gradient_format("bf16");
  const v1::Program compiled = CompileCase(c).value().at(0);
  EXPECT_TRUE(CheckProgram(compiled).ok());
  for (const std::string op : {"update", "squared_norm"}) {
    for (const kernels::DType type : {kernels::DType::kF32, kernels::DType::kF16}) {
      v1::Program program = compiled;
      int changed = 0;
      for (v1::Instruction& i : *program.mutable_sequences(0)->mutable_instructions()) {
        v1::Operand* gradient = i.compute().op() == op ? i.mutable_operands(0) : nullptr;
        if (gradient == nullptr || gradient->offset() != 0 || changed > 0) continue;
        if (gradient->dtype() != static_cast<uint32_t>(kernels::DType::kBF16)) continue;
        gradient->set_dtype(static_cast<decltype(gradient->dtype())>(type));
        ++changed;
      }
      ASSERT_EQ(changed, 1) << op;
      EXPECT_FALSE(CheckProgram(program).ok()) << op << " as " << kernels::Name(type);
    }
  }
}

TEST(RoundingCheckTest, BothOpsSayHowTheyRound) {
  EXPECT_THAT(Refusal([](v1::Program*, v1::Instruction* update) {
                update->mutable_compute()->mutable_update()->clear_rounding();
              }),
              HasSubstr("rounding is absent, must be there with update_stochastic alone"));
  EXPECT_THAT(Refusal([](v1::Program*, v1::Instruction* update) {
                update->mutable_compute()->set_op("update");
              }),
              HasSubstr("rounding is there, must be there with update_stochastic alone"));
}

TEST(RoundingCheckTest, TheStepIsTheOneThatTheScheduleCameWith) {
  EXPECT_THAT(Refusal([](v1::Program*, v1::Instruction* update) {
                v1::Operand* step = update->mutable_operands(6);
                step->set_buffer(update->operands(5).buffer());
                step->set_offset(update->operands(5).offset());
              }),
              HasSubstr("which is not what LOAD_SCHEDULE brought as the number of the step"));
  EXPECT_NE(Refusal([](v1::Program* program, v1::Instruction*) {
              for (v1::Instruction& i : *program->mutable_sequences(0)->mutable_instructions()) {
                if (i.input().kind() == v1::LOAD_SCHEDULE) i.mutable_operands()->RemoveLast();
              }
            }),
            "");
}

}  // namespace
}  // namespace terrace
