// What the checker asks of factors: programs that update each gradient as soon as it is final, with
// a factor of its own, broken where only the factor is wrong.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/unit/proto/checked_program.h"

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

v1::Operand* Scale(int adamw, v1::Program* program) {
  return Train(program)->mutable_instructions(adamw)->mutable_operands(4);
}

class UpdateAtOnceCheckTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(CheckProgram(program_), absl::OkStatus());
    factors_ = All("grad_scale", *Train(&program_));
    updates_ = All("adamw", *Train(&program_));
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
  EXPECT_GT(All("adamw", waits.sequences(0)).front(), All("matmul", waits.sequences(0)).back());
}

TEST_F(UpdateAtOnceCheckTest, TheFactorOfAnotherGradient) {
  // The factor of the first gradient is still there when the next update takes it.
  const v1::Operand other = *Scale(updates_.front(), &program_);
  for (const int update : updates_) {
    if (Scale(update, &program_)->buffer() == other.buffer()) continue;
    *Scale(update, &program_) = other;
    break;
  }
  EXPECT_THAT(Message(program_), testing::AnyOf(HasSubstr("are not among those that"),
                                                HasSubstr("is not what one grad_scale made"),
                                                HasSubstr("wait"), HasSubstr("lives")));
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

// A product behind an update reads the weights that it has changed, as an early update would make
// it.
TEST_F(UpdateAtOnceCheckTest, WeightsThatAreStillNeeded) {
  v1::Sequence* train = Train(&program_);
  const std::vector<int> products = All("matmul", *train);
  const auto weights = [&](int product) {
    return train->mutable_instructions(product)->mutable_operands(1);
  };
  const auto reads_like = [&](int product, int other) {
    return product != other && weights(product)->buffer() != weights(other)->buffer() &&
           std::ranges::equal(weights(product)->shape(), weights(other)->shape());
  };
  for (const int update : updates_) {
    const uint32_t changed = train->instructions(update).operands(1).buffer();
    for (const int product : products) {
      if (weights(product)->buffer() != changed) continue;
      for (const int later : products) {
        if (later < update || !reads_like(later, product)) continue;
        *weights(later) = *weights(product);
        EXPECT_THAT(Message(program_), testing::AnyOf(HasSubstr("updated already"),
                                                      HasSubstr("gradient of other weights")));
        return;
      }
    }
  }
  FAIL() << "no such product";
}

}  // namespace
}  // namespace terrace
