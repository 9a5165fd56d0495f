// What is kept of texts in programs that generate: the checker refuses whatever else touches it.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "proto/program/op_codec.h"
#include "tests/unit/proto/check/checked_program.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class KeptCheckTest : public testing::Test {
 protected:
  KeptCheckTest() {
    const Model model = TinyModel("llama");
    InferInput input = {.model = &model, .job = "j", .batch = 2};
    input.precisions.set_precision("fp32");
    const auto program = CompileGenerate(input, {.max_length = 12, .prefill_tokens = 5});
    EXPECT_TRUE(program.ok()) << program.status();
    program_ = *program;
    EXPECT_EQ(Message(program_), "");
  }

  uint32_t Keys() const {
    for (const v1::Buffer& buffer : program_.buffers()) {
      if (buffer.class_() == v1::KEY_VALUE_CACHE) return buffer.id();
    }
    ADD_FAILURE() << "nothing is kept";
    return 0;
  }
  // The first instruction of "decode" for which `wanted` holds.
  template <typename Wanted>
  v1::Instruction* Find(const Wanted& wanted) {
    for (v1::Instruction& instruction : *program_.mutable_sequences(1)->mutable_instructions()) {
      if (wanted(instruction)) return &instruction;
    }
    ADD_FAILURE() << "there is no such instruction";
    return program_.mutable_sequences(1)->mutable_instructions(0);
  }
  v1::Instruction* Attention() {
    return Find([](const v1::Instruction& instruction) {
      const auto op =
          instruction.has_compute() ? DecodeOp(instruction.compute()) : absl::NotFoundError("");
      return op.ok() && op->op == kernels::Op::kAttentionCached;
    });
  }
  v1::Instruction* Prompt() {
    return Find([](const v1::Instruction& instruction) {
      return instruction.input().kind() == v1::LOAD_PROMPT;
    });
  }

  v1::Program program_;
};

TEST_F(KeptCheckTest, NothingElseWritesIt) {
  // Where the tokens of a prompt go.
  Prompt()->mutable_operands(0)->set_buffer(Keys());
  EXPECT_THAT(Message(program_), AllOf(HasSubstr("LOAD_PROMPT"), HasSubstr("layers.0.keys"),
                                       HasSubstr("KEY_VALUE_CACHE, and nothing else is")));
}

TEST_F(KeptCheckTest, NothingElseReadsIt) {
  v1::Instruction* output =
      Find([](const v1::Instruction& instruction) { return instruction.has_output(); });
  *output->mutable_operands(0) = Attention()->operands(3);
  output->mutable_operands(0)->set_access(v1::READ);
  output->mutable_operands(0)->clear_shape();
  for (const int64_t size : {2, 4}) output->mutable_operands(0)->add_shape(size);
  output->mutable_operands(0)->clear_row_stride();
  EXPECT_THAT(Message(program_), AllOf(HasSubstr("logits"), HasSubstr("layers.0.keys")));
}

TEST_F(KeptCheckTest, ItIsKeptInBuffersForThatWhichLast) {
  program_.mutable_buffers(static_cast<int>(Keys()))->set_class_(v1::ACTIVATION);
  EXPECT_THAT(Message(program_), HasSubstr("of class ACTIVATION: keys and values are kept in"));
  program_.mutable_buffers(static_cast<int>(Keys() - 1))->set_class_(v1::KEY_VALUE_CACHE);
  v1::Buffer* buffer = program_.mutable_buffers(static_cast<int>(Keys()));
  buffer->set_lifetime(v1::STEP);
  buffer->set_sequence("decode");
  EXPECT_THAT(Message(program_), HasSubstr("must be persistent"));
}

TEST_F(KeptCheckTest, NoStepOfTrainingKeepsAnything) {
  program_.mutable_sequences(1)->set_name("train");
  for (v1::Buffer& buffer : *program_.mutable_buffers()) {
    if (buffer.sequence() == "decode") buffer.set_sequence("train");
  }
  EXPECT_THAT(Message(program_), HasSubstr("keeps keys and values, which no step of training may"));
}

TEST_F(KeptCheckTest, EachTokenHasAPosition) {
  v1::Operand* positions = Prompt()->mutable_operands(1);
  positions->set_shape(0, 1);
  EXPECT_THAT(Message(program_), HasSubstr("2 tokens have 1 positions"));
}

}  // namespace
}  // namespace terrace
