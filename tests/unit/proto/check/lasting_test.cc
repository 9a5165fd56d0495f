// What the checker asks of weights that last in fewer bits beside their masters: programs broken
// where only these are wrong.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/proto/check/checked_program.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class LastingCheckTest : public testing::TestWithParam<TinyJob> {
 protected:
  void SetUp() override { ASSERT_EQ(CheckProgram(program_), absl::OkStatus()); }

  // Rounds the weights of a layer.
  v1::Instruction* Rounding(const std::string& sequence, int layer) {
    const std::string own = absl::StrCat("layer", layer), tensor = absl::StrCat("layers.", layer);
    for (v1::Sequence& one : *program_.mutable_sequences()) {
      if (one.name() != sequence) continue;
      for (v1::Instruction& instruction : *one.mutable_instructions()) {
        const bool of_layer = instruction.text().find(own) != std::string::npos ||
                              instruction.text().find(tensor) != std::string::npos;
        if (instruction.compute().op() == "cast" && of_layer) return &instruction;
      }
    }
    ADD_FAILURE() << "nothing rounds layer " << layer << " in " << sequence;
    return nullptr;
  }

  v1::Program program_ = CompileTiny(GetParam());
};

TEST_P(LastingCheckTest, StepsFindAndLeaveThem) {
  for (const char* sequence : {"train", "restore"}) {
    EXPECT_NE(Rounding(sequence, 0), nullptr);
    EXPECT_NE(Rounding(sequence, 1), nullptr);
  }
}

TEST_P(LastingCheckTest, ThoseOfAnotherLayer) {
  *Rounding("train", 0)->mutable_operands(0) = Rounding("train", 1)->operands(0);
  EXPECT_THAT(Message(program_), HasSubstr("must leave there the same of the updated state"));
}

TEST_P(LastingCheckTest, ThoseThatNobodyRenews) {
  *Rounding("train", 0)->mutable_operands(1) = Rounding("train", 1)->operands(1);
  EXPECT_THAT(Message(program_), HasSubstr("must leave there the same of the updated state"));
}

TEST_P(LastingCheckTest, ThoseThatRestoreMakesOfAnotherLayer) {
  *Rounding("restore", 0)->mutable_operands(0) = Rounding("restore", 1)->operands(0);
  EXPECT_NE(CheckProgram(program_), absl::OkStatus());
}

TEST_P(LastingCheckTest, ThoseThatRestoreLeavesOut) {
  *Rounding("restore", 0)->mutable_operands(1) = Rounding("restore", 1)->operands(1);
  EXPECT_THAT(Message(program_), HasSubstr("before anything wrote it"));
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, LastingCheckTest,
    testing::Values(TinyJob{.family = "llama", .precision = "bf16", .parameter_format = "bf16"},
                    TinyJob{.family = "llama",
                            .precision = "fp16",
                            .data_parallel = 2,
                            .zero_stage = 3,
                            .parameter_format = "f16"}));

}  // namespace
}  // namespace terrace
