// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack/liveness.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace terrace {
namespace {

// One instruction of a hand-made sequence: its stream, what it waits for and the buffers it
// touches.
struct Line {
  uint32_t stream = 0;
  std::vector<uint32_t> waits;
  std::vector<uint32_t> buffers;
};

v1::Program MakeProgram(const std::vector<Line>& lines, int buffers, int streams = 2) {
  v1::Program program;
  for (int i = 0; i < streams; ++i) program.add_streams();
  program.add_arenas()->set_tier(v1::DEVICE);
  for (int i = 0; i < buffers; ++i) {
    program.add_buffers()->set_id(i);
    program.mutable_buffers(i)->set_lifetime(v1::STEP);
  }
  v1::Sequence* sequence = program.add_sequences();
  for (const Line& line : lines) {
    v1::Instruction* instruction = sequence->add_instructions();
    instruction->set_id(sequence->instructions_size() - 1);
    instruction->set_stream(line.stream);
    instruction->mutable_waits()->Assign(line.waits.begin(), line.waits.end());
    for (uint32_t buffer : line.buffers) {
      v1::Operand* operand = instruction->add_operands();
      operand->set_access(v1::UPDATE);
      operand->set_buffer(buffer);
    }
  }
  return program;
}

std::vector<Life> LivesOf(const v1::Program& program) {
  return Liveness(program, program.sequences(0));
}

bool Meet(const Life& a, const Life& b) { return a.begin < b.end && b.begin < a.end; }

TEST(LivenessTest, OnOneStreamALifeIsListOrder) {
  const auto lives = LivesOf(
      MakeProgram({{.buffers = {0}}, {.buffers = {0, 1}}, {.buffers = {1}}, {.buffers = {2}}}, 4));
  EXPECT_EQ(lives[0].begin, 0);
  EXPECT_EQ(lives[0].end, 2);
  EXPECT_EQ(lives[1].begin, 1);
  EXPECT_EQ(lives[1].end, 3);
  EXPECT_FALSE(Meet(lives[0], lives[2]));
  EXPECT_EQ(lives[3].begin, lives[3].end);  // never used
}

TEST(LivenessTest, WhatAnotherStreamTouchesLivesUntilItIsWaitedFor) {
  const auto lives = LivesOf(MakeProgram({{.stream = 0, .buffers = {0}},
                                          {.stream = 1, .waits = {0}, .buffers = {0}},
                                          {.stream = 0, .buffers = {1}},
                                          {.stream = 0, .waits = {1}, .buffers = {2}}},
                                         3));
  EXPECT_TRUE(Meet(lives[0], lives[1]));   // instruction 2 may run beside 1
  EXPECT_FALSE(Meet(lives[0], lives[2]));  // instruction 3 is after 1
}

TEST(LivenessTest, AWaitForAnEarlierInstructionDoesNotOrderALaterOne) {
  const auto lives = LivesOf(MakeProgram({{.stream = 0, .buffers = {0}},
                                          {.stream = 0, .buffers = {1}},
                                          {.stream = 1, .waits = {0}, .buffers = {2}}},
                                         3));
  EXPECT_FALSE(Meet(lives[0], lives[2]));
  EXPECT_TRUE(Meet(lives[1], lives[2]));
}

TEST(LivenessTest, OrderIsTransitiveThroughAThirdStream) {
  const auto lives = LivesOf(MakeProgram({{.stream = 0, .buffers = {0}},
                                          {.stream = 1, .waits = {0}, .buffers = {2}},
                                          {.stream = 2, .waits = {1}, .buffers = {1}}},
                                         3, 3));
  EXPECT_FALSE(Meet(lives[0], lives[1]));
}

TEST(LivenessTest, TheWorkspaceIsAUse) {
  v1::Program program = MakeProgram({{.buffers = {0}}, {.buffers = {0}}}, 2);
  v1::Operand* workspace =
      program.mutable_sequences(0)->mutable_instructions(1)->mutable_compute()->mutable_workspace();
  workspace->set_access(v1::WRITE);
  workspace->set_buffer(1);
  const auto lives = LivesOf(program);
  EXPECT_EQ(lives[1].begin, 1);
  EXPECT_EQ(lives[1].end, 2);
}

// Disjoint lives promise that every access to one buffer happens before every access to the other;
// reachability, worked out pair by pair, must agree. The other direction (no longer than needed) is
// checked for one stream only: there it is exact.
TEST(LivenessTest, DisjointLivesAreOrderedInRandomPrograms) {
  int disjoint_across_streams = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const int streams = 1 + static_cast<int>(random() % 4), buffers = 12, count = 40;
    std::vector<Line> lines;
    for (int i = 0; i < count; ++i) {
      Line line = {.stream = static_cast<uint32_t>(random() % streams)};
      for (int k = 0; k < 2 && i > 0; ++k) {
        const uint32_t wait = random() % i;
        if (random() % 2 == 0 && lines[wait].stream != line.stream) line.waits.push_back(wait);
      }
      // Buffers come into use one after the other, as activations do.
      line.buffers.push_back(std::min<uint32_t>(buffers - 1, i * buffers / count + random() % 2));
      lines.push_back(line);
    }
    std::vector<std::set<int>> before(count);  // of j: all that happen before it
    for (int j = 0; j < count; ++j) {
      std::set<int> direct(lines[j].waits.begin(), lines[j].waits.end());
      for (int i = j - 1; i >= 0; --i) {
        if (lines[i].stream == lines[j].stream) {
          direct.insert(i);
          break;
        }
      }
      for (int i : direct) {
        before[j].insert(i);
        before[j].insert(before[i].begin(), before[i].end());
      }
    }
    const auto lives = LivesOf(MakeProgram(lines, buffers, streams));
    for (int i = 0; i < count; ++i) {
      for (int j = 0; j < count; ++j) {
        const Life& a = lives[lines[i].buffers[0]];
        const Life& b = lives[lines[j].buffers[0]];
        if (Meet(a, b) || a.begin > b.begin) continue;
        EXPECT_TRUE(before[j].contains(i)) << i << " and " << j;
        disjoint_across_streams += lines[i].stream != lines[j].stream ? 1 : 0;
      }
    }
  }
  EXPECT_GT(disjoint_across_streams, 1000);
}

}  // namespace
}  // namespace terrace
