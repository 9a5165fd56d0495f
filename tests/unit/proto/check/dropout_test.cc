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

v1::Program Compiled(uint32_t tensor = 1, uint32_t context = 1, const char* type = "ring") {
  const v1::JobSpec spec = MatrixSpec();
  Model model = MatrixModel("gpt2");
  model.config.alibi = true;
  model.config.dropout = {.embedding = 0.1, .residual = 0.2, .attention = 0.3, .adapter = 0};
  v1::Layout layout = MatrixLayout();
  layout.set_context_parallel(context);
  layout.set_context_type(type);
  layout.set_micro_batches(2);
  layout.set_tensor_parallel(tensor);
  layout.set_ranks(tensor * context);
  layout.set_sequence_parallel(tensor > 1);
  return Compile({.spec = &spec, .model = &model, .layout = layout}).value().at(0);
}

std::string Refusal(const v1::Program& program) {
  return std::string(CheckProgram(program).message());
}

// Of training, in order.
std::vector<v1::Instruction*> Ops(const std::string& op, int64_t micro_batch,
                                  v1::Program* program) {
  std::vector<v1::Instruction*> found;
  for (v1::Instruction& i : *program->mutable_sequences(0)->mutable_instructions()) {
    if (i.compute().op() == op && i.micro_batch() == micro_batch) found.push_back(&i);
  }
  return found;
}
std::vector<v1::Instruction*> Dropouts(int64_t micro_batch, v1::Program* program) {
  return Ops("dropout", micro_batch, program);
}

TEST(DropoutCheckTest, TheCompilersProgramsPass) {
  for (const uint32_t tensor : {1, 2}) {
    EXPECT_EQ(Refusal(Compiled(tensor)), "");
    for (const char* type : {"ring", "ulysses"}) EXPECT_EQ(Refusal(Compiled(tensor, 2, type)), "");
  }
}

TEST(DropoutCheckTest, EvaluationDropsNothing) {
  const v1::Program program = Compiled();
  ASSERT_GT(program.sequences_size(), 1);
  for (int s = 1; s < program.sequences_size(); ++s) {
    for (const v1::Instruction& i : program.sequences(s).instructions()) {
      EXPECT_NE(i.compute().op(), "dropout") << program.sequences(s).name();
      EXPECT_EQ(i.compute().attention().terms().dropout(), 0) << program.sequences(s).name();
    }
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

TEST(DropoutCheckTest, AttentionHasThePlacesOfItsMicroBatch) {
  const struct {
    const char *type, *forward, *backward;
    uint32_t context;
  } kinds[] = {{"ring", "attention", "attention_grad", 1},
               {"ring", "attention_block", "attention_block_grad", 2},
               {"ulysses", "attention", "attention_grad", 2}};
  for (const auto& kind : kinds) {
    v1::Program program = Compiled(1, kind.context, kind.type);
    for (const auto& [op, places] : {std::pair(kind.forward, 6), std::pair(kind.backward, 10)}) {
      const std::vector<v1::Instruction*> first = Ops(op, 0, &program),
                                          second = Ops(op, 1, &program);
      ASSERT_GT(first.size(), 0u);
      ASSERT_EQ(first.size(), second.size());
      v1::Instruction* changed = second.front();
      const v1::Instruction before = *changed;
      *changed->mutable_operands(places) = first.front()->operands(places);
      EXPECT_NE(Refusal(program), "") << op;
      *changed = before;
      changed->mutable_operands(places)->Clear();
      EXPECT_THAT(Refusal(program), HasSubstr("must be 0 without places")) << op;
      *changed = before;
    }
    EXPECT_EQ(Refusal(program), "");
  }
}

TEST(DropoutCheckTest, SlopesFollowFromAllHeads) {
  v1::Program program = Compiled(2);
  v1::Instruction* attention = Ops("attention", 0, &program).front();
  attention->mutable_compute()->mutable_attention()->mutable_terms()->set_alibi_heads(16);
  EXPECT_THAT(Refusal(program), HasSubstr("its slopes are those of another number of heads"));
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
