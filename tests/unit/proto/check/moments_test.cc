// Programs whose moments rest in int8 blocks: what the checker refuses of them.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "proto/check/program_check.h"
#include "tests/unit/coordinator/compiler/layout_matrix.h"

namespace terrace {
namespace {

using testing::HasSubstr;

// Operands of update_int8.
constexpr int kMoment1 = 2, kMoment2 = 3, kScales1 = 6, kScales2 = 7;

v1::Program Compiled(uint32_t zero) {
  LayoutCase c = {"llama", MatrixLayout()};
  c.layout.set_moments_format("int8");
  c.layout.set_data_parallel(zero > 0 ? 2 : 1);
  c.layout.set_zero_stage(zero);
  return CompileCase(c).value().at(0);
}

// The one with the most blocks.
v1::Instruction* LargestUpdate(v1::Program* program) {
  v1::Instruction* largest = nullptr;
  for (v1::Instruction& i : *program->mutable_sequences(0)->mutable_instructions()) {
    if (i.compute().op() != "update_int8") continue;
    const bool larger =
        largest == nullptr || i.operands(kScales1).shape(0) > largest->operands(kScales1).shape(0);
    if (larger) largest = &i;
  }
  return largest;
}

// Updates a block less, with the second moment's scales of the blocks after its own.
void TakeNextScales(v1::Instruction* update) {
  const int64_t blocks = update->operands(kScales1).shape(0);
  const int64_t elements = update->operands(kMoment1).shape(0);
  for (v1::Operand& operand : *update->mutable_operands()) {
    if (operand.shape_size() != 1) continue;
    if (operand.shape(0) == elements) operand.set_shape(0, (blocks - 1) * 256);
    if (operand.shape(0) == blocks) operand.set_shape(0, blocks - 1);
  }
  v1::Operand* scales = update->mutable_operands(kScales2);
  scales->set_offset(scales->offset() + 4);
}

using Change = std::function<void(v1::Program*, v1::Instruction*)>;

class MomentsCheckTest : public testing::TestWithParam<uint32_t> {
 protected:
  // Empty: nothing is refused.
  static std::string Refusal(const Change& change) {
    v1::Program program = Compiled(GetParam());
    change(&program, LargestUpdate(&program));
    return std::string(CheckProgram(program).message());
  }
};

INSTANTIATE_TEST_SUITE_P(Zero, MomentsCheckTest, testing::Values(0, 1, 3));

TEST_P(MomentsCheckTest, TheCompilersProgramPasses) {
  EXPECT_EQ(Refusal([](v1::Program*, v1::Instruction*) {}), "");
}

TEST_P(MomentsCheckTest, ScalesOfOtherBlocksOrTheOtherMomentAreRefused) {
  EXPECT_THAT(Refusal([](v1::Program*, v1::Instruction* update) {
                update->mutable_operands(kScales1)->Swap(update->mutable_operands(kScales2));
              }),
              HasSubstr("is not the FIRST_MOMENT_SCALES of blocks of 256 from element"));
  EXPECT_THAT(Refusal([](v1::Program*, v1::Instruction* update) { TakeNextScales(update); }),
              HasSubstr("is not the SECOND_MOMENT_SCALES of blocks of 256 from element"));
  EXPECT_THAT(Refusal([](v1::Program*, v1::Instruction* update) {
                update->mutable_operands(kMoment1)->Swap(update->mutable_operands(kMoment2));
              }),
              HasSubstr("is not the FIRST_MOMENT of"));
}

TEST_P(MomentsCheckTest, BlocksHaveTheSizeThatTheRulesSay) {
  EXPECT_THAT(Refusal([](v1::Program* program, v1::Instruction*) {
                program->mutable_rules()->set_moment_block(128);
              }),
              HasSubstr("blocks of 256 elements, rules.moment_block says 128"));
  EXPECT_THAT(Refusal([](v1::Program* program, v1::Instruction*) {
                program->mutable_rules()->set_moment_block(100);
              }),
              HasSubstr("moment_block 100 must be 0 or a power of two from 16 to 256"));
  EXPECT_THAT(Refusal([](v1::Program* program, v1::Instruction*) {
                program->mutable_rules()->set_moment_block(0);
              }),
              HasSubstr("type U8 must be F32, BF16 or, with rules.moment_block, U8"));
  EXPECT_THAT(Refusal([](v1::Program*, v1::Instruction* update) {
                update->mutable_compute()->mutable_update()->set_block(128);
              }),
              HasSubstr("have a scale for each of the"));
}

// Which tensors a checkpoint holds follows from the initializers.
TEST_P(MomentsCheckTest, InitializersSayTheTypeOfMoments) {
  EXPECT_THAT(Refusal([](v1::Program* program, v1::Instruction*) {
                program->mutable_initializers(0)->clear_moments();
              }),
              HasSubstr("type U8 is not what its initializer says"));
}

// Those of keys and values have one shape, and lie in one buffer.
TEST_P(MomentsCheckTest, TheStateOfScalesIsWhereTheBlocksAre) {
  EXPECT_THAT(Refusal([](v1::Program* program, v1::Instruction*) {
                std::vector<v1::StateRange*> two;
                for (v1::StateRange& range : *program->mutable_state()) {
                  const bool taken =
                      range.kind() == v1::FIRST_MOMENT_SCALES &&
                      (range.tensor().ends_with("layers.0.self_attn.k_proj.weight") ||
                       range.tensor().ends_with("layers.0.self_attn.v_proj.weight"));
                  if (taken) two.push_back(&range);
                }
                ASSERT_EQ(two.size(), 2u);
                std::swap(*two[0]->mutable_tensor(), *two[1]->mutable_tensor());
              }),
              HasSubstr("is not the FIRST_MOMENT_SCALES of blocks of 256 from element"));
}

}  // namespace
}  // namespace terrace
