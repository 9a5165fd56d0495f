// SPDX-License-Identifier: Apache-2.0
#include "worker/train/train_sequences.h"

#include <gtest/gtest.h>

#include "tests/unit/worker/vm/tiny_program.h"

namespace terrace {
namespace {

void AddSum(uint32_t buffer, TinyProgram* tiny) {
  tiny->Compute(0, kernels::Op::kAdd, kernels::NoAttrs{},
                {{v1::READ, buffer}, {v1::READ, buffer}, {v1::WRITE, buffer}});
}

// Samples of 64 tokens are four iterations of a sum over 64 elements, samples of 16 tokens four
// sums over 16 elements that are written out.
TEST(TrainSequencesTest, ALoopComputesInEachIteration) {
  TinyProgram tiny({v1::COMPUTE});
  const uint32_t longer = tiny.Buffer(v1::F32, {64});
  const uint32_t shorter = tiny.Buffer(v1::F32, {16});
  AddSum(longer, &tiny);
  for (int i = 0; i < 4; ++i) AddSum(shorter, &tiny);
  v1::Program program = tiny.program();
  program.mutable_rules()->set_sequence_length(64);
  program.mutable_rules()->set_flops_per_step(1e6);
  v1::Sequence* part = program.add_sequences();
  part->set_name("train/16");
  part->set_sequence_length(16);
  v1::Sequence* train = program.mutable_sequences(0);
  for (int i = 1; i <= 4; ++i) *part->add_instructions() = train->instructions(i);
  train->mutable_instructions()->DeleteSubrange(1, 4);
  v1::Loop* loop = train->add_loops();
  loop->set_first(0);
  loop->set_count(1);
  loop->set_trips(4);

  const TrainSequences sequences(program);
  EXPECT_DOUBLE_EQ(sequences.Of(64).flops, 1e6);
  EXPECT_DOUBLE_EQ(sequences.Of(16).flops, 1e6 / 4);
}

}  // namespace
}  // namespace terrace
