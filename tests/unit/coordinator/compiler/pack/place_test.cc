// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack/place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace {
namespace {

using testing::HasSubstr;

v1::Buffer* AddBuffer(v1::Program* program, int64_t bytes, v1::Lifetime lifetime,
                      const std::string& sequence = "") {
  v1::Buffer* buffer = program->add_buffers();
  buffer->set_id(program->buffers_size() - 1);
  buffer->set_name("b" + std::to_string(buffer->id()));
  buffer->set_bytes(bytes);
  buffer->set_lifetime(lifetime);
  buffer->set_sequence(sequence);
  return buffer;
}

void AddUse(v1::Sequence* sequence, uint32_t buffer) {
  v1::Instruction* instruction = sequence->add_instructions();
  instruction->set_id(sequence->instructions_size() - 1);
  v1::Operand* operand = instruction->add_operands();
  operand->set_access(v1::UPDATE);
  operand->set_buffer(buffer);
}

v1::Program TwoSequences() {
  v1::Program program;
  program.add_arenas()->set_tier(v1::DEVICE);
  program.add_streams();
  program.add_sequences()->set_name("train");
  program.add_sequences()->set_name("eval");
  return program;
}

// The same with a host arena, and a persistent buffer in each.
v1::Program TwoArenas() {
  v1::Program program = TwoSequences();
  v1::Arena* host = program.add_arenas();
  host->set_id(1);
  host->set_tier(v1::HOST);
  AddBuffer(&program, 512, v1::PERSISTENT);
  AddBuffer(&program, 768, v1::PERSISTENT)->set_arena(1);
  return program;
}

TEST(PlaceTest, PersistentBuffersComeFirstInOrder) {
  v1::Program program = TwoSequences();
  AddBuffer(&program, 1000, v1::STEP, "train");
  AddBuffer(&program, 100, v1::PERSISTENT);
  AddBuffer(&program, 300, v1::PERSISTENT);
  AddUse(program.mutable_sequences(0), 0);
  ASSERT_TRUE(PlaceBuffers(&program).ok());
  EXPECT_EQ(program.buffers(1).offset(), 0);
  EXPECT_EQ(program.buffers(2).offset(), 256);
  EXPECT_EQ(program.buffers(0).offset(), 768);
  EXPECT_EQ(program.arenas(0).bytes(), 768 + 1024);
}

TEST(PlaceTest, SequencesReuseEachOthersSpace) {
  v1::Program program = TwoSequences();
  AddBuffer(&program, 1024, v1::STEP, "train");
  AddBuffer(&program, 2048, v1::STEP, "eval");
  AddUse(program.mutable_sequences(0), 0);
  AddUse(program.mutable_sequences(1), 1);
  ASSERT_TRUE(PlaceBuffers(&program).ok());
  EXPECT_EQ(program.buffers(0).offset(), 0);
  EXPECT_EQ(program.buffers(1).offset(), 0);
  EXPECT_EQ(program.arenas(0).bytes(), 2048);
  EXPECT_EQ(program.arenas(0).lower_bound_bytes(), 2048);
}

TEST(PlaceTest, ABufferThatNobodyUsesStillLiesInsideItsArena) {
  v1::Program program = TwoSequences();
  AddBuffer(&program, 5000, v1::STEP, "train");
  ASSERT_TRUE(PlaceBuffers(&program).ok());
  EXPECT_GE(program.arenas(0).bytes(), 5000);
}

TEST(PlaceTest, EachArenaIsPlacedByItself) {
  v1::Program program = TwoArenas();
  AddBuffer(&program, 256, v1::STEP, "train")->set_arena(1);
  AddUse(program.mutable_sequences(0), 2);
  ASSERT_TRUE(PlaceBuffers(&program).ok());
  EXPECT_EQ(program.arenas(0).bytes(), 512);
  EXPECT_EQ(program.arenas(1).bytes(), 2 * 4096);
  EXPECT_EQ(program.buffers(2).offset(), 4096);
}

TEST(PlaceTest, WhatDoesNotExistIsRefusedByName) {
  v1::Program program = TwoSequences();
  AddBuffer(&program, 256, v1::STEP, "sleep");
  EXPECT_THAT(std::string(PlaceBuffers(&program).message()), HasSubstr("'sleep' does not exist"));
  program.mutable_buffers(0)->set_sequence("train");
  program.mutable_buffers(0)->set_arena(3);
  EXPECT_THAT(std::string(PlaceBuffers(&program).message()), HasSubstr("arena 3 of 1"));
  program.mutable_buffers(0)->set_arena(0);
  program.mutable_buffers(0)->set_bytes(0);
  EXPECT_THAT(std::string(PlaceBuffers(&program).message()), HasSubstr("at least 1"));
}

// Nine buffers whose best packing in one piece each lies above the bound: few do.
v1::Program WithoutPackingAtTheBound() {
  std::mt19937 random(15893);
  v1::Program program = TwoSequences();
  AddBuffer(&program, 1000, v1::PERSISTENT);
  for (int64_t time = 0; time < 12; ++time) {
    program.mutable_sequences(0)->add_instructions()->set_id(static_cast<uint32_t>(time));
  }
  for (int i = 0; i < 9; ++i) {
    const int64_t bytes = int64_t{256 << 10} * (1 + static_cast<int64_t>(random() % 5));
    const v1::Buffer* buffer = AddBuffer(&program, bytes, v1::STEP, "train");
    const int begin = static_cast<int>(random() % 8);
    const int last = begin + static_cast<int>(random() % 4);
    for (const int time : {begin, last}) {
      v1::Operand* operand =
          program.mutable_sequences(0)->mutable_instructions(time)->add_operands();
      operand->set_access(v1::UPDATE);
      operand->set_buffer(buffer->id());
    }
  }
  return program;
}

TEST(PlaceTest, PagesAreUsedOnlyWhereTheyAreAllowed) {
  v1::Program program = WithoutPackingAtTheBound();
  ASSERT_TRUE(PlaceBuffers(&program).ok());
  const int64_t in_one_piece = program.arenas(0).bytes();
  const int64_t bound = program.arenas(0).lower_bound_bytes();
  EXPECT_GT(in_one_piece, bound + bound / 100);
  EXPECT_EQ(program.arenas(0).aliases_size(), 0);
  EXPECT_EQ(program.arenas(0).page_bytes(), 0);
  ASSERT_TRUE(PlaceBuffers(&program, PagePolicy::kWhereLoose).ok());
  EXPECT_LE(program.arenas(0).bytes(), bound + bound / 100);
  EXPECT_GT(program.arenas(0).aliases_size(), 0);
  EXPECT_EQ(program.arenas(0).page_bytes(), 4096);
  const std::string paged = program.SerializeAsString();
  ASSERT_TRUE(PlaceBuffers(&program, PagePolicy::kWhereLoose).ok());
  EXPECT_EQ(program.SerializeAsString(), paged);
  ASSERT_TRUE(PlaceBuffers(&program).ok());
  EXPECT_EQ(program.arenas(0).aliases_size(), 0) << "of an earlier placement";
  EXPECT_EQ(program.arenas(0).bytes(), in_one_piece);
}

TEST(PlaceTest, PagesToFitAreUsedOnlyWhereOnePieceEachDoesNotFit) {
  v1::Program program = WithoutPackingAtTheBound();
  ASSERT_TRUE(PlaceBuffers(&program, PagePolicy::kToFit).ok());
  EXPECT_EQ(program.arenas(0).aliases_size(), 0) << "there is no limit";
  program.set_external_bytes(1 << 20);
  program.set_device_limit_bytes(program.external_bytes() + program.arenas(0).bytes());
  ASSERT_TRUE(PlaceBuffers(&program, PagePolicy::kToFit).ok());
  EXPECT_EQ(program.arenas(0).aliases_size(), 0);
  program.set_device_limit_bytes(program.device_limit_bytes() - 1);
  ASSERT_TRUE(PlaceBuffers(&program, PagePolicy::kToFit).ok());
  EXPECT_GT(program.arenas(0).aliases_size(), 0);
  EXPECT_LE(program.external_bytes() + program.arenas(0).bytes(), program.device_limit_bytes());
}

// Two pages are most of such an arena.
TEST(PlaceTest, PagesThatAreTooLargeForAnArenaLeaveItAsItIs) {
  v1::Program program = WithoutPackingAtTheBound();
  program.set_device("cuda");
  ASSERT_TRUE(PlaceBuffers(&program).ok());
  const std::string in_one_piece = program.SerializeAsString();
  ASSERT_TRUE(PlaceBuffers(&program, PagePolicy::kWhereLoose).ok());
  EXPECT_EQ(program.SerializeAsString(), in_one_piece);
}

TEST(PlaceTest, CompiledProgramsAreWithinOnePercentOfTheBound) {
  for (const TinyJob& job : TinyJobs()) {
    const v1::Program program = CompileTiny(job);
    EXPECT_LE(program.arenas(0).bytes(), program.arenas(0).lower_bound_bytes() * 1.01)
        << Describe(job);
  }
}

TEST(PlaceTest, PlacingAgainChangesNothing) {
  v1::Program program = CompileTiny({.data_parallel = 2, .micro_batches = 2});
  const std::string bytes = program.SerializeAsString();
  ASSERT_TRUE(PlaceBuffers(&program, PagePolicy::kWhereLoose).ok());
  EXPECT_EQ(program.SerializeAsString(), bytes);
}

}  // namespace
}  // namespace terrace
