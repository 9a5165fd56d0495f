// Ranks that take turns on one thread compute what threads over Gloo compute, in whatever order;
// without its waits a program does not.
//
// SPDX-License-Identifier: Apache-2.0
#include "tests/system/turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/system/layout_data.h"
#include "tests/system/meeting.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int64_t kSteps = 2;

v1::Layout Grid(uint32_t data, uint32_t tensor, uint32_t stages, uint32_t context) {
  v1::Layout layout = MatrixLayout();
  layout.set_data_parallel(data);
  layout.set_tensor_parallel(tensor);
  layout.set_pipeline_parallel(stages);
  layout.set_context_parallel(context);
  layout.set_threads_per_rank(1);
  return layout;
}

std::vector<v1::Layout> Layouts() {
  v1::Layout zero3 = Grid(2, 2, 1, 2);
  zero3.set_zero_stage(3);
  zero3.set_sequence_parallel(true);
  v1::Layout hierarchical = Grid(4, 1, 1, 1);
  hierarchical.set_zero_stage(2);
  hierarchical.set_shard_size(2);
  hierarchical.set_precision("bf16");
  hierarchical.set_reduce_format("bf16");
  v1::Layout pipeline = Grid(1, 1, 4, 2);
  pipeline.set_schedule("zb-h1");
  pipeline.set_context_type("ulysses");
  return {Grid(1, 1, 1, 1), zero3, hierarchical, pipeline};
}

void ExpectSame(const JobResult& a, const JobResult& b, const std::string& what) {
  ASSERT_EQ(a.losses.size(), static_cast<size_t>(kSteps)) << what;
  EXPECT_EQ(a.losses, b.losses) << what;
  EXPECT_EQ(a.gradients, b.gradients) << what;
  EXPECT_EQ(a.weights, b.weights) << what;
  EXPECT_EQ(a.second_moment, b.second_moment) << what;
}

TEST(TurnsTest, EveryOrderGivesTheBitsOfThreads) {
  const JobData data = RandomJob(MatrixModel("qwen2"), /*rows=*/8, /*length=*/16);
  for (const v1::Layout& layout : Layouts()) {
    const std::string what = Describe(LayoutCase{"qwen2", layout});
    const JobResult threads = TrainLayout(data, layout, kSteps);
    for (const uint32_t seed : {1, 2, 3}) {
      const JobResult turns = TrainLayout(data, layout, kSteps, {.turns = seed});
      ExpectSame(turns, threads, what);
      EXPECT_EQ(turns.sent_per_step, threads.sent_per_step) << what;
    }
  }
}

// Whether some order of the changed programs computes something else than the right ones do.
bool SomeOrderShows(const JobData& data, const std::vector<v1::Program>& right,
                    const std::vector<v1::Program>& changed) {
  const auto expected = TrainPrograms(data, right, kSteps, {.turns = 0});
  EXPECT_TRUE(expected.ok()) << expected.status();
  for (uint32_t seed = 0; seed < 8; ++seed) {
    const auto result = TrainPrograms(data, changed, kSteps, {.turns = seed});
    if (!result.ok() || result->weights != expected->weights) return true;
  }
  return false;
}

TEST(TurnsTest, WithoutItsWaitsAProgramComputesSomethingElse) {
  const JobData data = RandomJob(MatrixModel("gpt2"), /*rows=*/8, /*length=*/16);
  for (const v1::Layout& layout : {Grid(2, 1, 1, 1), Grid(1, 1, 2, 1)}) {
    const auto right = CompileJob(data, layout);
    ASSERT_TRUE(right.ok()) << right.status();
    EXPECT_FALSE(SomeOrderShows(data, *right, *right));
    // What communicates no longer waits for what computes, or the other way round.
    for (const bool of_communication : {true, false}) {
      std::vector<v1::Program> changed = *right;
      for (v1::Program& program : changed) {
        for (v1::Instruction& i : *program.mutable_sequences(0)->mutable_instructions()) {
          if ((i.has_collective() || i.has_transfer()) == of_communication) i.clear_waits();
        }
      }
      EXPECT_TRUE(SomeOrderShows(data, *right, changed))
          << Describe(LayoutCase{"gpt2", layout}) << " " << of_communication;
    }
  }
}

absl::Status ReceiveFromTheOther(const PreparedInstruction& instruction, SequenceIo*) {
  static float value;
  return instruction.group->Receive(&value, sizeof(value), 1 - instruction.group->rank());
}

TEST(TurnsTest, WhoCannotGoOnIsNamed) {
  Meeting meeting("g", 2);
  Member members[] = {Member(&meeting, 0), Member(&meeting, 1)};
  v1::Instruction source;
  source.set_text("receive x");
  PreparedSequence sequences[2];
  std::vector<TurnRank> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    PreparedInstruction receive;
    receive.run = ReceiveFromTheOther;
    receive.group = &members[rank];
    receive.source = &source;
    sequences[rank].streams.push_back({.instructions = {receive}});
    ranks.push_back({.sequence = &sequences[rank]});
  }
  std::mt19937 random(1);
  const absl::Status status = RunInTurns(ranks, &random);
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rank 0 is in receive x; rank 1 is in receive x;"));
}

}  // namespace
}  // namespace terrace
