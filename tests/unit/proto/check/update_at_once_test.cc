// What the checker asks of factors: programs that update each gradient as soon as it is final, with
// a factor of its own, broken where only the factor is wrong.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/proto/check/checked_program.h"

namespace terrace {
namespace {

using testing::HasSubstr;

v1::Program CompileWith(double clip_grad_norm) {
  v1::JobSpec spec = TinySpec();
  spec.mutable_train()->set_clip_grad_norm(clip_grad_norm);
  const TinyJob job = {.family = "llama", .micro_batches = 2, .bucket_bytes = 8000};
  const Model model = TinyModel(job.family, job.sizes);
  auto programs = Compile({.spec = &spec, .model = &model, .layout = TinyLayout(job)});
  EXPECT_TRUE(programs.ok()) << programs.status();
  return programs.ok() ? programs->at(0) : v1::Program();
}

// Positions of the instructions that run `op`.
std::vector<int> All(const char* op, const v1::Sequence& train) {
  std::vector<int> found;
  for (int i = FindOp(train, op); i >= 0; i = FindOp(train, op, i + 1)) found.push_back(i);
  return found;
}

class UpdateAtOnceCheckTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(CheckProgram(program_), absl::OkStatus());
    factors_ = All("grad_scale", *Train(&program_));
    updates_ = All("update", *Train(&program_));
    ASSERT_GT(factors_.size(), 2u);
  }

  v1::Program program_ = CompileWith(0);
  std::vector<int> factors_, updates_;
};

TEST_F(UpdateAtOnceCheckTest, UpdatesComeBeforeTheLastPassEnds) {
  const std::vector<int> products = All("matmul", *Train(&program_));
  EXPECT_LT(updates_.front(), products.back());
  const v1::Program waits = CompileWith(1);
  EXPECT_EQ(All("grad_scale", waits.sequences(0)).size(), 1u);
  EXPECT_GT(All("update", waits.sequences(0)).front(), All("matmul", waits.sequences(0)).back());
}

TEST_F(UpdateAtOnceCheckTest, AFactorFromTheSquaresOfAnotherGradient) {
  const v1::Operand other = Train(&program_)->instructions(factors_[0]).operands(0);
  *Train(&program_)->mutable_instructions(factors_[1])->mutable_operands(0) = other;
  EXPECT_THAT(Message(program_), HasSubstr("are not among those that"));
}

TEST_F(UpdateAtOnceCheckTest, ANormThatLeavesAGradientOut) {
  // The last factor is that of all gradients: it is what STEP_STATS hands out.
  v1::Instruction* all = Train(&program_)->mutable_instructions(factors_.back());
  ASSERT_GT(all->operands(0).shape(0), 1);
  all->mutable_operands(0)->set_shape(0, all->operands(0).shape(0) - 1);
  EXPECT_THAT(Message(program_), HasSubstr("hands out a norm without the gradient of"));
}

TEST_F(UpdateAtOnceCheckTest, StatisticsOfOneGradient) {
  const v1::Instruction& own = Train(&program_)->instructions(factors_.front());
  *Train(&program_)->mutable_instructions(factors_.back())->mutable_operands(0) = own.operands(0);
  EXPECT_THAT(Message(program_), HasSubstr("hands out a norm without the gradient of"));
}

TEST_F(UpdateAtOnceCheckTest, AFactorThatClipsByTheNormOfOneGradient) {
  Train(&program_)
      ->mutable_instructions(factors_.front())
      ->mutable_compute()
      ->mutable_clip()
      ->set_clip_grad_norm(1);
  EXPECT_THAT(Message(program_), HasSubstr("which clips by another norm than"));
}

// Moves an instruction to a later place.
void MoveTo(int from, int to, v1::Sequence* sequence) {
  std::vector<int> moved;
  for (int i = 0; i < sequence->instructions_size(); ++i) {
    moved.push_back(i == from ? to : i > from && i <= to ? i - 1 : i);
  }
  for (int i = from; i < to; ++i) sequence->mutable_instructions()->SwapElements(i, i + 1);
  Renumber(moved, sequence);
}

// The last product that reads weights comes behind their update.
TEST_F(UpdateAtOnceCheckTest, WeightsThatAreStillNeeded) {
  const v1::Sequence& train = program_.sequences(0);
  std::vector<std::string> messages;
  for (const int update : updates_) {
    const v1::Operand& changed = train.instructions(update).operands(1);
    for (const int product : All("matmul", train)) {
      const v1::Operand& weights = train.instructions(product).operands(1);
      const bool last = product < update && product + 8 > update;
      if (!last || weights.buffer() != changed.buffer() || weights.offset() != changed.offset())
        continue;
      v1::Program mutant = program_;
      MoveTo(product, update, Train(&mutant));
      messages.push_back(Message(mutant));
    }
  }
  EXPECT_THAT(messages, testing::Contains(HasSubstr("updated already")));
  EXPECT_THAT(messages, testing::Not(testing::Contains("")));
}

}  // namespace
}  // namespace terrace
