// Programs that drop elements: what the checker refuses of them.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "proto/check/program_check.h"
#include "tests/unit/coordinator/compiler/layout_matrix.h"

namespace terrace {
namespace {

using testing::HasSubstr;

v1::Program Compiled(uint32_t tensor = 1) {
  const v1::JobSpec spec = MatrixSpec();
  Model model = MatrixModel("gpt2");
  model.config.dropout = {.embedding = 0.1, .residual = 0.2, .adapter = 0};
  v1::Layout layout = MatrixLayout();
  layout.set_micro_batches(2);
  layout.set_tensor_parallel(tensor);
  layout.set_ranks(tensor);
  layout.set_sequence_parallel(tensor > 1);
  return Compile({.spec = &spec, .model = &model, .layout = layout}).value().at(0);
}

std::string Refusal(const v1::Program& program) {
  return std::string(CheckProgram(program).message());
}

// Of training, in order.
std::vector<v1::Instruction*> Dropouts(int64_t micro_batch, v1::Program* program) {
  std::vector<v1::Instruction*> found;
  for (v1::Instruction& i : *program->mutable_sequences(0)->mutable_instructions()) {
    if (i.compute().op() == "dropout" && i.micro_batch() == micro_batch) found.push_back(&i);
  }
  return found;
}

TEST(DropoutCheckTest, TheCompilersProgramsPass) {
  for (const uint32_t tensor : {1, 2}) EXPECT_EQ(Refusal(Compiled(tensor)), "");
}

TEST(DropoutCheckTest, EvaluationDropsNothing) {
  const v1::Program program = Compiled();
  ASSERT_GT(program.sequences_size(), 1);
  for (int s = 1; s < program.sequences_size(); ++s) {
    for (const v1::Instruction& i : program.sequences(s).instructions())
      EXPECT_NE(i.compute().op(), "dropout") << program.sequences(s).name();
  }
}

TEST(DropoutCheckTest, ThePlacesOfAnotherMicroBatchAreRefused) {
  v1::Program program = Compiled();
  const std::vector<v1::Instruction*> first = Dropouts(0, &program), second = Dropouts(1, &program);
  ASSERT_GT(first.size(), 1u);
  ASSERT_EQ(first.size(), second.size());
  for (v1::Instruction* instruction : {second.front(), second.back()}) {
    const v1::Operand before = instruction->operands(1);
    *instruction->mutable_operands(1) = first.front()->operands(1);
    EXPECT_NE(Refusal(program), "");
    *instruction->mutable_operands(1) = before;
  }
}

TEST(DropoutCheckTest, ARankHasAShardThatThereIs) {
  v1::Program program = Compiled();
  Dropouts(0, &program).front()->mutable_compute()->mutable_dropout()->set_column_shards(3);
  EXPECT_THAT(Refusal(program), HasSubstr("one of 3 shards, the grid has 1 tensor-parallel ranks"));
}

TEST(DropoutCheckTest, EveryTokenHasAPlace) {
  v1::Program program = Compiled();
  int changed = 0;
  for (v1::Instruction& i : *program.mutable_sequences(0)->mutable_instructions()) {
    if (i.input().kind() != v1::LOAD_BATCH || changed++ > 0) continue;
    ASSERT_EQ(i.operands_size(), 3);
    i.mutable_operands(2)->set_shape(0, i.operands(2).shape(0) - 1);
  }
  ASSERT_GT(changed, 0);
  EXPECT_THAT(Refusal(program),
              HasSubstr("tokens, targets, places and starts must be of one length"));
}

}  // namespace
}  // namespace terrace
