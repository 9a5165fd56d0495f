// What the checker asks of codes: that they are decoded with the scales that were made with them,
// in the format in which they were made, and those of weights as they were gathered.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/proto/checked_program.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class CodesCheckTest : public testing::TestWithParam<TinyJob> {
 protected:
  void SetUp() override {
    ASSERT_EQ(CheckProgram(program_), absl::OkStatus());
    for (v1::Sequence& sequence : *program_.mutable_sequences()) {
      if (sequence.name() != "train") continue;
      for (v1::Instruction& i : *sequence.mutable_instructions()) {
        if (i.compute().op() == "decode_blocks") decodes_.push_back(&i);
      }
    }
    ASSERT_GT(decodes_.size(), 3u);
  }

  v1::Program program_ = CompileTiny(GetParam());
  std::vector<v1::Instruction*> decodes_;
};

// Many of these break what memory allows as well; the rule is told where nothing else is wrong.
TEST_P(CodesCheckTest, ScalesOfOtherCodes) {
  int told = 0;
  for (v1::Instruction* decode : decodes_) {
    for (const v1::Instruction* other : decodes_) {
      const v1::Operand own = decode->operands(1);
      if (other->operands(1).shape(0) != own.shape(0) ||
          other->operands(1).buffer() == own.buffer()) {
        continue;
      }
      *decode->mutable_operands(1) = other->operands(1);
      const std::string message = Message(program_);
      EXPECT_NE(message, "") << decode->text() << " with the scales of " << other->text();
      told +=
          message.find("decodes codes with scales that were not made with them") != message.npos;
      *decode->mutable_operands(1) = own;
    }
  }
  EXPECT_GT(told, 0);
}

TEST_P(CodesCheckTest, AnotherFormat) {
  v1::BlockAttrs* attrs = decodes_[decodes_.size() / 2]->mutable_compute()->mutable_block();
  attrs->set_format(attrs->format() == v1::FP8_E4M3 ? v1::INT8_LINEAR : v1::FP8_E4M3);
  EXPECT_THAT(Message(program_), HasSubstr("decodes codes as those of another format"));
}

TinyJob Deep(const char* activation, const char* gather, uint32_t ranks) {
  return {.family = "llama",
          .precision = "bf16",
          .data_parallel = ranks,
          .zero_stage = ranks > 1 ? 3u : 0u,
          .sizes = {.layers = 6},
          .activation_format = activation,
          .gather_format = gather};
}

INSTANTIATE_TEST_SUITE_P(Codes, CodesCheckTest,
                         testing::Values(Deep("int8", "", 1), Deep("fp8", "", 1),
                                         Deep("", "int8", 2), Deep("", "fp8", 2)),
                         [](const auto& info) {
                           const TinyJob& job = info.param;
                           return job.gather_format.empty() ? "Activations_" + job.activation_format
                                                            : "Weights_" + job.gather_format;
                         });

}  // namespace
}  // namespace terrace
