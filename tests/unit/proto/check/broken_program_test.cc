// The checker against programs that the compiler made and that were then broken in one place.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/proto/check/checked_program.h"

namespace terrace {
namespace {

using testing::HasSubstr;

struct Breakage {
  const char* name;
  void (*apply)(v1::Program*);
  const char* says;
};

class BrokenProgramTest : public testing::TestWithParam<Breakage> {};

TEST_P(BrokenProgramTest, IsRefusedWithTheRule) {
  v1::Program program = TwoRanks();
  GetParam().apply(&program);
  EXPECT_THAT(Message(program), HasSubstr(GetParam().says));
}

v1::Buffer* StepBuffer(v1::Program* program) {
  for (v1::Buffer& buffer : *program->mutable_buffers()) {
    if (buffer.lifetime() == v1::STEP) return &buffer;
  }
  return nullptr;
}

int FirstReduceOfGradients(const v1::Program& program) {
  const v1::Sequence& train = program.sequences(0);
  for (int i = FindCollective(train); i >= 0; i = FindCollective(train, i + 1)) {
    if (program.buffers(train.instructions(i).operands(0).buffer()).class_() == v1::GRADIENT)
      return i;
  }
  return -1;
}

const Breakage kBreakages[] = {
    {"BufferId", [](v1::Program* p) { p->mutable_buffers(3)->set_id(4); }, "must be its position"},
    {"BufferOffset",
     [](v1::Program* p) { StepBuffer(p)->set_offset(StepBuffer(p)->offset() + 128); },
     "multiple of 256"},
    {"BufferOutsideArena", [](v1::Program* p) { StepBuffer(p)->set_bytes(int64_t{1} << 40); },
     "must lie inside arena 0"},
    {"BufferArena", [](v1::Program* p) { StepBuffer(p)->set_arena(7); },
     "arena 7 of 1 does not exist"},
    {"BufferSequence", [](v1::Program* p) { StepBuffer(p)->set_sequence("sleep"); },
     "'sleep' does not exist"},
    {"BufferTooSmallForShape", [](v1::Program* p) { p->mutable_buffers(0)->set_shape(0, 1 << 30); },
     "its shape takes"},
    {"ArenaShrunk",
     [](v1::Program* p) { p->mutable_arenas(0)->set_bytes(p->arenas(0).bytes() - 256); },
     "must lie inside arena"},
    {"ArenaOverLimit",
     [](v1::Program* p) {
       p->set_device_limit_bytes(p->arenas(0).bytes() + p->external_bytes() - 1);
     },
     "device_limit_bytes is"},
    {"PersistentMovedOntoAnother",
     [](v1::Program* p) { p->mutable_buffers(1)->set_offset(p->buffers(0).offset()); },
     "shares its bytes with no other"},
    {"StepMovedOntoPersistent", [](v1::Program* p) { StepBuffer(p)->set_offset(0); },
     "shares its bytes with no other"},
    {"GridOfMoreRanks", [](v1::Program* p) { p->mutable_grid()->set_context(3); },
     "its axes make 6 ranks, the program says 2"},
    {"GridOfMoreStages",
     [](v1::Program* p) {
       p->mutable_grid()->clear_data_shard();
       p->mutable_grid()->clear_data_replica();
       p->mutable_grid()->set_pipeline(2);
     },
     "pipeline is 2, the program says 1 stages"},
    {"GridOverflows",
     [](v1::Program* p) {
       v1::Grid* grid = p->mutable_grid();
       for (auto set : {&v1::Grid::set_tensor, &v1::Grid::set_context, &v1::Grid::set_data_shard,
                        &v1::Grid::set_data_replica, &v1::Grid::set_pipeline}) {
         (grid->*set)(1 << 20);
       }
     },
     "the program says 2"},
    {"GroupWithoutAxes", [](v1::Program* p) { p->mutable_groups(0)->clear_axes(); }, "has no axes"},
    {"GroupWithAnAxisTwice",
     [](v1::Program* p) { p->mutable_groups(0)->add_axes(p->groups(0).axes(0)); },
     "is there twice"},
    {"GroupWithAnUnknownAxis",
     [](v1::Program* p) { p->mutable_groups(0)->add_axes(static_cast<v1::Axis>(17)); },
     "axis 17 does not exist"},
    {"GroupOfStagesWithoutPipeline", [](v1::Program* p) { p->mutable_groups(0)->add_stages(0); },
     "no group of the axis PIPELINE"},
    {"GroupInTensorBlocks", [](v1::Program* p) { p->mutable_groups(0)->set_tensor_block(1); },
     "tensor_block 1 must divide"},
    {"GroupInBlocksOfShards", [](v1::Program* p) { p->mutable_groups(0)->set_shard_block(1); },
     "shard_block 1 must be between 1 and the "},
    {"GroupOfShardsThatAreApart", [](v1::Program* p) { p->mutable_groups(0)->set_shard_stride(3); },
     "shard_stride 3 must be between 1 and the "},
    {"GroupInBlocksThatAreApart",
     [](v1::Program* p) {
       p->mutable_groups(0)->set_shard_block(2);
       p->mutable_groups(0)->set_shard_stride(2);
     },
     "must have one of them at most"},
    {"InstructionId", [](v1::Program* p) { Train(p)->mutable_instructions(5)->set_id(6); },
     "stands at position 5"},
    {"Stream", [](v1::Program* p) { Train(p)->mutable_instructions(5)->set_stream(9); },
     "stream 9 of"},
    {"WaitForward", [](v1::Program* p) { Train(p)->mutable_instructions(5)->add_waits(5); },
     "which is not earlier"},
    {"WaitOnOwnStream",
     [](v1::Program* p) {
       const int i = FindOp(*Train(p), "update", FindOp(*Train(p), "update") + 1);
       Train(p)->mutable_instructions(i)->add_waits(i - 1);
     },
     "on its own stream"},
    {"OperandBuffer",
     [](v1::Program* p) { First("matmul", p)->mutable_operands(0)->set_buffer(99999); },
     "does not exist"},
    {"OperandOutsideBuffer",
     [](v1::Program* p) { First("matmul", p)->mutable_operands(0)->set_offset(1 << 30); },
     "must lie inside buffer"},
    {"OperandUnaligned",
     [](v1::Program* p) { First("matmul", p)->mutable_operands(0)->set_offset(2); },
     "multiple of 4"},
    {"OperandOfOtherSequence",
     [](v1::Program* p) {
       for (const v1::Buffer& buffer : p->buffers()) {
         if (buffer.sequence() == "eval")
           First("matmul", p)->mutable_operands(0)->set_buffer(buffer.id());
       }
     },
     "belongs to sequence 'eval'"},
    {"OperandAccess",
     [](v1::Program* p) { First("matmul", p)->mutable_operands(0)->set_access(v1::UPDATE); },
     "the op table says READ"},
    {"OperandShape",
     [](v1::Program* p) { First("matmul", p)->mutable_operands(0)->set_shape(1, 8); }, "matmul"},
    {"UnknownOp", [](v1::Program* p) { First("matmul", p)->mutable_compute()->set_op("matmull"); },
     "matmull"},
    {"NoOperation", [](v1::Program* p) { First("matmul", p)->clear_compute(); },
     "must do something"},
    {"WorkspaceTooSmall",
     [](v1::Program* p) {
       v1::Operand* workspace =
           First("lm_head_loss_grad", p)->mutable_compute()->mutable_workspace();
       workspace->set_shape(0, workspace->shape(0) - 64);
     },
     "needs a workspace of"},
    {"WorkspaceMissing",
     [](v1::Program* p) { First("lm_head_loss_grad", p)->mutable_compute()->clear_workspace(); },
     "and has none"},
    {"InputOverItself",
     [](v1::Program* p) {
       First("matmul", p)->mutable_operands(2)->CopyFrom(First("matmul", p)->operands(0));
       First("matmul", p)->mutable_operands(2)->set_access(v1::WRITE);
     },
     "matmul"},
    {"ForwardOpDropped",
     [](v1::Program* p) { RemoveInstruction(FindOp(*Train(p), "attention"), Train(p)); },
     "before anything wrote it"},
    {"EmbeddingDropped",
     [](v1::Program* p) { RemoveInstruction(FindOp(*Train(p), "embedding"), Train(p)); },
     "before anything wrote it"},
    {"OptimizerOpDropped",
     [](v1::Program* p) { RemoveInstruction(FindOp(*Train(p), "update"), Train(p)); },
     "is updated by no optimizer op"},
    {"OptimizerOpTwice",
     [](v1::Program* p) { RepeatInstruction(FindOp(*Train(p), "update"), Train(p)); },
     "a second time"},
    // Neither gradient comes from an op that knows its bias.
    {"GradientOfAnotherBias",
     [](v1::Program* p) {
       const v1::Instruction* other = nullptr;
       for (v1::Instruction& i : *Train(p)->mutable_instructions()) {
         if (i.compute().op() != "update" || !i.text().ends_with("c_proj.bias")) continue;
         if (other != nullptr) *i.mutable_operands(0) = other->operands(0);
         if (other != nullptr) return;
         other = &i;
       }
     },
     "has updated another weight"},
    {"OptimizerOpShort",
     [](v1::Program* p) {
       for (int k = 0; k < 4; ++k) {
         v1::Operand* operand = First("update", p)->mutable_operands(k);
         operand->set_shape(0, operand->shape(0) - 1);
       }
     },
     "is updated by no optimizer op"},
    {"MomentsSwapped",
     [](v1::Program* p) { First("update", p)->mutable_operands()->SwapElements(2, 3); },
     "is not the FIRST_MOMENT"},
    {"ReduceDropped",
     [](v1::Program* p) { RemoveInstruction(FirstReduceOfGradients(*p), Train(p)); },
     "it was not summed over that"},
    {"ReduceTwice", [](v1::Program* p) { RepeatInstruction(FirstReduceOfGradients(*p), Train(p)); },
     "what is the same on all of its ranks"},
    {"ReduceHalf",
     [](v1::Program* p) {
       v1::Operand* operand =
           Train(p)->mutable_instructions(FirstReduceOfGradients(*p))->mutable_operands(0);
       operand->set_shape(0, operand->shape(0) / 2);
     },
     "it was not summed over that"},
    {"CollectiveGroup",
     [](v1::Program* p) {
       Train(p)
           ->mutable_instructions(FindCollective(*Train(p)))
           ->mutable_collective()
           ->set_group(4);
     },
     "group 4 of"},
    {"CollectiveOnAnotherStream",
     [](v1::Program* p) {
       Train(p)->mutable_instructions(FirstReduceOfGradients(*p))->set_stream(1);
     },
     "a group has one stream"},
    {"MicroBatchTwice",
     [](v1::Program* p) { Train(p)->mutable_instructions(1)->set_micro_batch(0); },
     "a second time"},
    {"MicroBatchMissing", [](v1::Program* p) { p->mutable_rules()->set_micro_batches(3); },
     "micro-batch 2 of 3 is never loaded"},
    {"MicroBatchTooMany", [](v1::Program* p) { p->mutable_rules()->set_micro_batches(1); },
     "micro-batch 1 of 1 does not exist"},
    {"TokensOfMicroBatch", [](v1::Program* p) { p->mutable_rules()->set_sequence_length(6); },
     "a micro-batch has 12"},
    {"DataParallelOfOtherSize", [](v1::Program* p) { p->mutable_rules()->set_data_parallel(4); },
     "the grid has 2 ranks that see different data"},
    {"ContributionDropped",
     [](v1::Program* p) {
       int i = FindOp(*Train(p), "bias_grad");
       while (!Train(p)->instructions(i).compute().accumulate().accumulate()) {
         i = FindOp(*Train(p), "bias_grad", i + 1);
       }
       RemoveInstruction(i, Train(p));
     },
     "in which micro-batch 1 is missing once"},
    {"ContributionTwice",
     [](v1::Program* p) {
       int i = FindOp(*Train(p), "bias_grad");
       while (!Train(p)->instructions(i).compute().accumulate().accumulate()) {
         i = FindOp(*Train(p), "bias_grad", i + 1);
       }
       RepeatInstruction(i, Train(p));
     },
     "in which micro-batch 1 is once too often"},
    {"SquaredNormDropped",
     [](v1::Program* p) {
       const int i = FindOp(*Train(p), "squared_norm");
       const v1::Operand squares = Train(p)->instructions(i).operands(1);
       v1::Instruction* fill = Train(p)->mutable_instructions(i);
       fill->mutable_compute()->Clear();
       fill->mutable_compute()->set_op("fill");
       fill->mutable_compute()->mutable_fill();
       fill->clear_operands();
       *fill->add_operands() = squares;
     },
     "which no squared norm counts"},
    {"SquaredNormScaled",
     [](v1::Program* p) {
       First("squared_norm", p)->mutable_compute()->mutable_scale()->set_scale(0.5);
     },
     "count them 0.5 times, must be once"},
    {"ScaleFromElsewhere",
     [](v1::Program* p) {
       *First("update", p)->mutable_operands(4) = First("update", p)->operands(5);
     },
     "which is not what grad_scale made"},
    {"LossNotSummed",
     [](v1::Program* p) {
       for (int i = FindCollective(*Train(p)); i >= 0; i = FindCollective(*Train(p), i + 1)) {
         if (Train(p)->instructions(i).operands(0).shape(0) == 2) {
           return RemoveInstruction(i, Train(p));
         }
       }
     },
     "the total of losses, which differs over"},
    {"StateOutsideBuffer",
     [](v1::Program* p) { p->mutable_state(0)->set_offset(int64_t{1} << 40); },
     "must lie aligned inside"},
    {"MomentsOfNobody",
     [](v1::Program* p) {
       int i = 0;
       while (p->state(i).kind() != v1::FIRST_MOMENT) ++i;
       p->mutable_state()->DeleteSubrange(i, 1);
     },
     "before anything wrote it"},
    {"StateShort",
     [](v1::Program* p) {
       v1::StateRange* range = p->mutable_state(0);
       range->set_rows(range->rows() - 1);
     },
     "is held by no range"},
    {"StateOverTheEdge", [](v1::Program* p) { p->mutable_state(0)->set_row(1); },
     "which only a split may"},
    {"StateSplitInOddBlocks", [](v1::Program* p) { p->mutable_state(0)->set_split_block(2); },
     "split_block 2 must divide the 1 ranks"},
    {"StateShardTooLarge",
     [](v1::Program* p) { p->mutable_state(0)->set_shard_elements(int64_t{1} << 49); },
     "must fit into buffer"},
    {"StateTwice", [](v1::Program* p) { *p->add_state() = p->state(0); }, "is held twice"},
    {"StateInStepBuffer",
     [](v1::Program* p) { p->mutable_state(0)->set_buffer(StepBuffer(p)->id()); },
     "must be persistent"},
    {"StateShared",
     [](v1::Program* p) {
       v1::StateRange copy = p->state(0);
       copy.set_tensor("another");
       *p->add_state() = copy;
     },
     "overlap in buffer"},
    {"InitializerOfNothing",
     [](v1::Program* p) { p->mutable_initializers(0)->set_tensor("nobody"); },
     "there is no such weight"},
    {"TiedToNothing", [](v1::Program* p) { (*p->mutable_tied())["lm_head.weight"] = "nobody"; },
     "is no weight"},
    {"WeightWrittenByAnother",
     [](v1::Program* p) {
       v1::Instruction* matmul = First("matmul", p);
       v1::Operand weight = matmul->operands(1);
       v1::Instruction* fill = Train(p)->add_instructions();
       fill->set_id(Train(p)->instructions_size() - 1);
       fill->set_layer(-1);
       fill->set_micro_batch(-1);
       fill->mutable_compute()->set_op("fill");
       fill->mutable_compute()->mutable_fill();
       weight.set_access(v1::WRITE);
       *fill->add_operands() = weight;
     },
     "which only the optimizer of 'train' may"},
};

INSTANTIATE_TEST_SUITE_P(OneChange, BrokenProgramTest, testing::ValuesIn(kBreakages),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace terrace
