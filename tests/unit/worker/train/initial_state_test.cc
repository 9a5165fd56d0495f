// SPDX-License-Identifier: Apache-2.0
#include "worker/train/initial_state.h"

#include <cmath>
#include <map>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/memory_region.h"
#include "worker/rank/memory_classes.h"

namespace terrace {
namespace {

void AddBuffer(v1::Program* program, v1::BufferClass cls, v1::Lifetime lifetime, int64_t bytes,
               int64_t offset) {
  v1::Buffer* buffer = program->add_buffers();
  buffer->set_id(program->buffers_size() - 1);
  buffer->set_class_(cls);
  buffer->set_lifetime(lifetime);
  buffer->set_bytes(bytes);
  buffer->set_offset(offset);
}

v1::Buffer* AddBuffer(v1::Program* program, uint32_t arena, v1::BufferClass cls,
                      v1::Lifetime lifetime, int64_t bytes, int64_t offset) {
  AddBuffer(program, cls, lifetime, bytes, offset);
  v1::Buffer* buffer = program->mutable_buffers(program->buffers_size() - 1);
  buffer->set_arena(arena);
  return buffer;
}

void Use(v1::Sequence* sequence, std::initializer_list<uint32_t> buffers) {
  v1::Instruction* instruction = sequence->add_instructions();
  for (uint32_t buffer : buffers) {
    instruction->add_operands()->set_access(v1::READ);
    instruction->mutable_operands()->rbegin()->set_buffer(buffer);
  }
}

TEST(InitialStateTest, PersistentBuffersBecomeZeroAndStepBuffersStay) {
  v1::Program program;
  program.add_arenas()->set_bytes(512);
  AddBuffer(&program, v1::PARAMETER, v1::PERSISTENT, 256, 0);
  AddBuffer(&program, v1::ACTIVATION, v1::STEP, 256, 256);
  std::vector<std::byte> memory(512, std::byte{7});
  MemoryRegion region(memory);
  Region* regions[] = {&region};
  ASSERT_TRUE(FillInitialState(program, regions, 2).ok());
  for (int i = 0; i < 512; ++i) ASSERT_EQ(memory[i], i < 256 ? std::byte{0} : std::byte{7}) << i;
}

TEST(InitialStateTest, RopeTablesHoldCosinesThenSines) {
  v1::Program program;
  program.add_arenas()->set_bytes(256);
  AddBuffer(&program, v1::PARAMETER, v1::PERSISTENT, 3 * 4 * 4, 0);
  program.mutable_buffers(0)->add_shape(3);
  program.mutable_buffers(0)->add_shape(4);
  v1::RopeTable* table = program.add_rope_tables();
  table->add_inverse_frequency(1.0);
  table->add_inverse_frequency(0.01);
  table->set_attention_factor(2.0);
  std::vector<float> memory(64);
  MemoryRegion region(std::as_writable_bytes(std::span(memory)));
  Region* regions[] = {&region};
  ASSERT_TRUE(FillInitialState(program, regions, 1).ok());
  EXPECT_FLOAT_EQ(memory[0], 2.0f);
  EXPECT_FLOAT_EQ(memory[2], 0.0f);
  EXPECT_FLOAT_EQ(memory[8 + 0], static_cast<float>(2 * std::cos(2.0)));
  EXPECT_FLOAT_EQ(memory[8 + 1], static_cast<float>(2 * std::cos(0.02)));
  EXPECT_FLOAT_EQ(memory[8 + 2], static_cast<float>(2 * std::sin(2.0)));
  EXPECT_FLOAT_EQ(memory[8 + 3], static_cast<float>(2 * std::sin(0.02)));
}

TEST(MemoryClassesTest, LinesAreOfThePeakAndSumToTheArena) {
  v1::Program program;
  program.add_arenas()->set_bytes(5000);
  program.mutable_arenas(0)->set_tier(v1::DEVICE);
  AddBuffer(&program, v1::PARAMETER, v1::PERSISTENT, 1000, 0);
  AddBuffer(&program, v1::ACTIVATION, v1::STEP, 2000, 1024);  // lives at the peak
  AddBuffer(&program, v1::WORKSPACE, v1::STEP, 1500, 3072);   // too
  AddBuffer(&program, v1::GRADIENT, v1::STEP, 700, 3072);     // not
  AddBuffer(&program, v1::EXTERNAL, v1::PERSISTENT, 9999, 0);
  v1::Sequence* train = program.add_sequences();
  train->set_name("train");
  Use(train, {1});
  Use(train, {1, 2});
  Use(train, {1, 3});
  std::map<uint32_t, int64_t> bytes;
  int64_t total = 0;
  for (const v1::ClassBytes& line : MemoryClasses(program)) {
    total += line.bytes();
    bytes[line.class_()] = line.bytes();
  }
  const std::map<uint32_t, int64_t> expected = {{v1::BUFFER_CLASS_UNSPECIFIED, 500},
                                                {v1::PARAMETER, 1000},
                                                {v1::ACTIVATION, 2000},
                                                {v1::WORKSPACE, 1500}};
  EXPECT_EQ(bytes, expected);
  EXPECT_EQ(total, 5000);
}

// The peak of the host is where the device's is not.
TEST(MemoryClassesTest, EachTierHasItsOwnPeak) {
  v1::Program program;
  for (const v1::Tier tier : {v1::DEVICE, v1::HOST}) {
    v1::Arena* arena = program.add_arenas();
    arena->set_id(program.arenas_size() - 1);
    arena->set_tier(tier);
    arena->set_bytes(4096);
  }
  AddBuffer(&program, 0, v1::ACTIVATION, v1::STEP, 3000, 0);
  AddBuffer(&program, 0, v1::GRADIENT, v1::STEP, 1000, 0);
  AddBuffer(&program, 1, v1::ACTIVATION, v1::STEP, 100, 0);
  AddBuffer(&program, 1, v1::OPTIMIZER, v1::STEP, 4096, 0);
  v1::Sequence* train = program.add_sequences();
  train->set_name("train");
  Use(train, {0, 2});
  Use(train, {1, 3});
  std::map<std::pair<uint32_t, uint32_t>, int64_t> bytes;
  for (const v1::ClassBytes& line : MemoryClasses(program))
    bytes[{line.tier(), line.class_()}] = line.bytes();
  const std::map<std::pair<uint32_t, uint32_t>, int64_t> expected = {
      {{v1::DEVICE, v1::BUFFER_CLASS_UNSPECIFIED}, 1096},
      {{v1::DEVICE, v1::ACTIVATION}, 3000},
      {{v1::HOST, v1::BUFFER_CLASS_UNSPECIFIED}, 0},
      {{v1::HOST, v1::OPTIMIZER}, 4096}};
  EXPECT_EQ(bytes, expected);
}

TEST(PlannedStatsTest, TheLargestFreeBlockLiesBetweenWhatLivesAtThePeak) {
  v1::Program program;
  program.add_arenas()->set_bytes(10'000);
  program.mutable_arenas(0)->set_tier(v1::DEVICE);
  AddBuffer(&program, 0, v1::PARAMETER, v1::PERSISTENT, 1000, 0);
  AddBuffer(&program, 0, v1::ACTIVATION, v1::STEP, 2000, 1024);
  AddBuffer(&program, 0, v1::GRADIENT, v1::STEP, 4000, 5000);
  AddBuffer(&program, 0, v1::WORKSPACE, v1::STEP, 500, 3500);  // lives elsewhere
  v1::Sequence* train = program.add_sequences();
  train->set_name("train");
  Use(train, {1, 2});
  Use(train, {3});
  const v1::AllocatorStats stats = PlannedStats(program);
  EXPECT_EQ(stats.reserved_bytes(), 10'000);
  EXPECT_EQ(stats.allocated_bytes(), 7000);
  EXPECT_EQ(stats.largest_free_block_bytes(), 5000 - 3024);
}

}  // namespace
}  // namespace terrace
