// Programs whose sequences hold several documents: what the checker refuses of them.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "proto/check/program_check.h"
#include "tests/unit/coordinator/compiler/layout_matrix.h"

namespace terrace {
namespace {

using testing::HasSubstr;

v1::Program Compiled(const std::string& family, uint32_t context = 1) {
  v1::JobSpec spec = MatrixSpec();
  spec.mutable_data()->set_samples("packed");
  const Model model = MatrixModel(family);
  v1::Layout layout = MatrixLayout();
  layout.set_micro_batches(2);
  layout.set_context_parallel(context);
  layout.set_ranks(context);
  return Compile({.spec = &spec, .model = &model, .layout = layout}).value().at(0);
}

std::string Refusal(const v1::Program& program) {
  return std::string(CheckProgram(program).message());
}

// The last operand, or of attention the one before its places.
v1::Operand* StartsOf(v1::Instruction* instruction) {
  const bool attention = absl::StartsWith(instruction->compute().op(), "attention");
  return instruction->mutable_operands(instruction->operands_size() - (attention ? 2 : 1));
}

// Those of training that have starts, in order.
std::vector<v1::Instruction*> WithStarts(const std::string& op, v1::Program* program) {
  std::vector<v1::Instruction*> found;
  for (v1::Instruction& i : *program->mutable_sequences(0)->mutable_instructions()) {
    if (i.compute().op() != op) continue;
    if (StartsOf(&i)->access() == v1::READ) found.push_back(&i);
  }
  return found;
}

TEST(DocumentsCheckTest, TheCompilersProgramsPass) {
  for (const std::string family : {"gpt2", "llama"}) {
    for (const uint32_t context : {1, 2}) EXPECT_EQ(Refusal(Compiled(family, context)), "");
  }
}

TEST(DocumentsCheckTest, NoOpForgetsThem) {
  struct Case {
    std::string op;
    uint32_t context;
  };
  for (const Case& c : std::vector<Case>{{"attention", 1},
                                         {"attention_grad", 1},
                                         {"attention_block", 2},
                                         {"attention_block_grad", 2},
                                         {"embedding", 1},
                                         {"embedding_grad", 1}}) {
    v1::Program program = Compiled("gpt2", c.context);
    const std::vector<v1::Instruction*> ops = WithStarts(c.op, &program);
    ASSERT_FALSE(ops.empty()) << c.op;
    *StartsOf(ops.front()) = v1::Operand();
    EXPECT_THAT(Refusal(program), HasSubstr("takes several documents for one")) << c.op;
  }
}

// Of evaluation: its attention, or its batch and its attention both.
TEST(DocumentsCheckTest, EvaluationForgetsThemNeither) {
  for (const bool batch : {false, true}) {
    v1::Program program = Compiled("llama");
    v1::Sequence* eval = nullptr;
    for (v1::Sequence& sequence : *program.mutable_sequences()) {
      if (sequence.name() == "eval") eval = &sequence;
    }
    ASSERT_NE(eval, nullptr);
    for (v1::Instruction& i : *eval->mutable_instructions()) {
      if (i.compute().op() == "attention") *StartsOf(&i) = v1::Operand();
      if (batch && i.input().kind() == v1::LOAD_BATCH) {
        while (i.operands_size() > 2) i.mutable_operands()->RemoveLast();
      }
    }
    EXPECT_THAT(Refusal(program), HasSubstr(batch ? "brings no starts of documents"
                                                  : "takes several documents for one"));
  }
}

TEST(DocumentsCheckTest, TheStartsAreThoseOfTheMicroBatch) {
  v1::Program program = Compiled("llama");
  const std::vector<v1::Instruction*> ops = WithStarts("attention", &program);
  ASSERT_GT(ops.size(), 1u);
  ASSERT_NE(StartsOf(ops.front())->buffer(), StartsOf(ops.back())->buffer());
  *StartsOf(ops.back()) = *StartsOf(ops.front());
  EXPECT_THAT(
      Refusal(program),
      HasSubstr("(attention, attention) made unusable: it computes with several micro-batches"));
}

TEST(DocumentsCheckTest, NothingElseIsTakenForStarts) {
  v1::Program program = Compiled("llama");
  const v1::Instruction* load = nullptr;
  for (const v1::Instruction& i : program.sequences(0).instructions()) {
    if (load == nullptr && i.input().kind() == v1::LOAD_BATCH) load = &i;
  }
  ASSERT_NE(load, nullptr);
  ASSERT_EQ(load->operands_size(), 4);
  v1::Operand targets = load->operands(1);
  targets.set_access(v1::READ);
  *StartsOf(WithStarts("attention", &program).front()) = targets;
  EXPECT_THAT(Refusal(program), HasSubstr("takes something else for LOAD_BATCH's starts"));
}

}  // namespace
}  // namespace terrace
