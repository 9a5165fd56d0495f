// Steps of many micro-batches are loops, and what they do is what the straight list does.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/loops/roll.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/compiler/loops/roll_values.h"
#include "proto/check/program_check.h"
#include "proto/program/loops.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace {
namespace {

// Jobs whose steps repeat themselves: families, precisions, ZeRO, offload, recompute.
std::vector<TinyJob> LongJobs() {
  std::vector<TinyJob> jobs;
  for (const std::string& family : Families())
    jobs.push_back({.family = family, .precision = "bf16", .micro_batches = 40});
  for (const uint32_t zero : {0u, 1u, 2u, 3u}) {
    for (const char* recompute : {"none", "selective", "full"}) {
      jobs.push_back({.family = "llama",
                      .data_parallel = 4,
                      .micro_batches = 40,
                      .zero_stage = zero,
                      .recompute = recompute});
    }
  }
  jobs.push_back({.precision = "fp16", .micro_batches = 40});
  jobs.push_back({.family = "llama",
                  .precision = "bf16",
                  .data_parallel = 4,
                  .micro_batches = 40,
                  .zero_stage = 2,
                  .reduce_format = "int8"});
  jobs.push_back({.data_parallel = 2, .micro_batches = 40, .tensor_parallel = 2});
  jobs.push_back({.family = "llama",
                  .data_parallel = 2,
                  .micro_batches = 40,
                  .context_parallel = 2,
                  .zero_stage = 3});
  for (const v1::Tier tier : {v1::HOST, v1::NVME}) {
    jobs.push_back({.micro_batches = 40, .gradient = tier, .optimizer = tier});
    jobs.push_back({.family = "llama",
                    .data_parallel = 2,
                    .micro_batches = 40,
                    .zero_stage = 3,
                    .parameter = tier,
                    .gradient = tier,
                    .optimizer = tier});
  }
  for (const v1::Tier tier : {v1::HOST, v1::NVME}) {
    // What is smaller than 64 KiB stays on the device.
    jobs.push_back({.micro_batches = 40,
                    .recompute = "block",
                    .sizes = {.hidden = 256, .sequence = 64},
                    .activation = tier,
                    .chunk_bytes = 1 << 20});
  }
  // Where weight gradients are put off, gradients of activations leave too.
  jobs.push_back({.micro_batches = 257,
                  .pipeline_parallel = 2,
                  .schedule = "zb-h1",
                  .recompute = "block",
                  .sizes = {.hidden = 256, .layers = 4, .sequence = 64},
                  .activation = v1::HOST,
                  .chunk_bytes = 1 << 20});
  jobs.push_back({.micro_batches = 40, .lengths = {4, 8}});
  for (const uint32_t zero : {0u, 2u}) {
    jobs.push_back({.family = "llama",
                    .data_parallel = 2,
                    .micro_batches = 40,
                    .pipeline_parallel = 3,
                    .zero_stage = zero,
                    .sizes = {.layers = 3}});
  }
  jobs.push_back({.micro_batches = 40, .pipeline_parallel = 8, .sizes = {.layers = 8}});
  for (const char* schedule : {"zb-h1", "zbv", "interleaved"}) {
    jobs.push_back({.micro_batches = 257,
                    .pipeline_parallel = 2,
                    .schedule = schedule,
                    .sizes = {.layers = 4}});
  }
  return jobs;
}

// What an instruction does, in words, without which memory it does it in.
std::string WordsOf(const v1::Program& program, const v1::Instruction& instruction) {
  return absl::StrCat(program.streams(instruction.stream()).name(), " ", instruction.text(),
                      " layer ", instruction.layer(), " mb ", instruction.micro_batch());
}

void ExpectSameWork(const v1::Program& looped, const v1::Program& straight) {
  const WrittenOut written = WriteOut(looped, 0);
  for (int s = 0; s < straight.sequences_size(); ++s) {
    const v1::Sequence& sequence = straight.sequences(s);
    const bool trains = sequence.name().starts_with("train");
    EXPECT_EQ(looped.sequences(s).loops_size(), trains ? 1 : 0) << sequence.name();
    const v1::Sequence& other = written.program.sequences(s);
    ASSERT_EQ(other.instructions_size(), sequence.instructions_size());
    for (int i = 0; i < sequence.instructions_size(); ++i) {
      ASSERT_EQ(WordsOf(written.program, other.instructions(i)),
                WordsOf(straight, sequence.instructions(i)));
    }
  }
}

void ExpectNoMoreMemory(const v1::Program& looped, const v1::Program& straight,
                        const std::string& schedule) {
  for (int a = 0; a < looped.arenas_size(); ++a) {
    const double bytes = looped.arenas(a).bytes(), before = straight.arenas(a).bytes();
    // Half a percent; of arenas as small as these a few buffers more. In a pipeline several
    // micro-batches are under way, each in buffers that wait for their turn.
    const double more = looped.stages() == 1 ? 1.005 : schedule == "1f1b" ? 1.03 : 1.07;
    EXPECT_LE(bytes, before * more + 8192) << "stage " << looped.stage() << ", arena " << a;
  }
}

// Of activations; by their copies in one iteration.
int64_t LeavesInAnIteration(const v1::Program& program) {
  const v1::Sequence& train = SequenceOf(program, "train");
  int64_t bytes = 0;
  for (const v1::Loop& loop : train.loops()) {
    for (uint32_t i = loop.first(); i < loop.first() + loop.count(); ++i) {
      const v1::Instruction& instruction = train.instructions(static_cast<int>(i));
      if (!instruction.has_copy() || instruction.copy().kind() != v1::TO_HOST) continue;
      bytes += program.buffers(static_cast<int>(instruction.operands(0).buffer())).bytes();
    }
  }
  return bytes;
}

// Parts that leave the device are those of a micro-batch, not those of the step.
TEST(RollTest, APartOfTheActivationsLeavesInEveryIterationAlike) {
  const TinyJob job = {.micro_batches = 40,
                       .recompute = "block",
                       .sizes = {.hidden = 256, .layers = 6, .sequence = 64},
                       .chunk_bytes = 1 << 20};
  const v1::JobSpec spec = TinySpec(job.sizes.sequence);
  const Model model = TinyModel(job.family, job.sizes);
  const auto leaves = [&](double part) -> int64_t {
    v1::Layout layout = TinyLayout(job);
    layout.mutable_offload()->mutable_activation()->set_device(1 - part);
    layout.mutable_offload()->mutable_activation()->set_host(part);
    const auto programs = Compile({.spec = &spec, .model = &model, .layout = layout});
    EXPECT_TRUE(programs.ok()) << programs.status();
    if (!programs.ok()) return 0;
    EXPECT_TRUE(HasLoops(programs->front())) << part;
    EXPECT_EQ(CheckPrograms(*programs), absl::OkStatus());
    return LeavesInAnIteration(programs->front());
  };
  const int64_t all = leaves(1);
  EXPECT_GT(all, 0);
  for (const double part : {0.3, 0.5, 0.7}) {
    const auto some = static_cast<double>(leaves(part));
    EXPECT_NEAR(some, part * static_cast<double>(all), 0.2 * static_cast<double>(all)) << part;
  }
}

TEST(RollTest, ALongStepIsALoopThatDoesWhatTheStraightListDoes) {
  for (TinyJob job : LongJobs()) {
    SCOPED_TRACE(Describe(job));
    const std::vector<v1::Program> looped = CompileStages(job);
    job.straight = true;
    const std::vector<v1::Program> straight = CompileStages(job);
    ASSERT_EQ(looped.size(), straight.size());
    std::vector<v1::Program> written;
    for (size_t stage = 0; stage < looped.size(); ++stage) {
      ExpectSameWork(looped[stage], straight[stage]);
      if (job.activation != v1::DEVICE) {
        EXPECT_GT(LeavesInAnIteration(looped[stage]), 0);
      }
      ExpectNoMoreMemory(looped[stage], straight[stage], job.schedule);
      written.push_back(WriteOut(looped[stage], 0).program);
    }
    EXPECT_EQ(CheckPrograms(written), absl::OkStatus());
  }
}

// More of them in one iteration would need buffers for as many again.
TEST(RollTest, AnIterationOfADeepPipelineIsAsShortAsItCanBe) {
  for (const uint32_t stages : {6u, 8u}) {
    for (const char* schedule : {"1f1b", "zb-h1", "zbv", "interleaved"}) {
      const std::string words = schedule;
      const uint32_t chunks = words == "interleaved" ? 2 : 1;
      const TinyJob job = {.micro_batches = words == "1f1b" ? 40u : 264u,
                           .pipeline_parallel = stages,
                           .schedule = schedule,
                           .sizes = {.layers = 16}};
      SCOPED_TRACE(Describe(job));
      for (const v1::Program& program : CompileStages(job)) {
        ASSERT_EQ(program.sequences(0).loops_size(), 1) << program.stage();
        EXPECT_EQ(program.sequences(0).loops(0).micro_batches(), chunks > 1 ? stages : 1u);
      }
    }
  }
}

// Turns of twelve stages have a common multiple of many thousands.
TEST(RollTest, LongStepsOfDeepPipelinesAreCheckedAsFastAsShortOnes) {
  for (const char* schedule : {"1f1b", "zb-h1", "zbv", "interleaved"}) {
    const TinyJob job = {.micro_batches = 120'000,
                         .pipeline_parallel = 12,
                         .schedule = schedule,
                         .sizes = {.layers = 24}};
    EXPECT_EQ(CheckPrograms(CompileStages(job)), absl::OkStatus()) << schedule;
  }
}

// Its first stage has 72 micro-batches under way, and the tokens of one more.
TEST(RollTest, APipelineOfManyStagesIsALoopThatTheCheckerTakes) {
  const std::vector<v1::Program> programs =
      CompileStages({.micro_batches = 250, .pipeline_parallel = 72, .sizes = {.layers = 72}});
  for (const v1::Program& program : programs)
    ASSERT_EQ(program.sequences(0).loops_size(), 1) << program.stage();
  EXPECT_EQ(CheckPrograms(programs), absl::OkStatus());
}

TEST(RollTest, TheProgramDoesNotGrowWithItsMicroBatches) {
  TinyJob job = {.family = "llama", .data_parallel = 4, .micro_batches = 32, .zero_stage = 3};
  const v1::Program some = CompileTiny(job);
  job.micro_batches = 100'000;
  const v1::Program many = CompileTiny(job);
  // Numbers of more digits.
  EXPECT_LE(many.ByteSizeLong(), some.ByteSizeLong() * 1.01);
  EXPECT_EQ(many.sequences(0).instructions_size(), some.sequences(0).instructions_size());
  EXPECT_EQ(many.sequences(0).loops(0).trips() - some.sequences(0).loops(0).trips(), 100'000u - 32);
}

// Chains of so many slots, with a value of so many bytes each, as AlignSlots leaves them.
std::vector<int> Aligned(const std::vector<std::pair<int, int64_t>>& slots_and_bytes) {
  v1::Program program;
  std::vector<std::optional<compiler::RolledSequence>> rolled(1);
  rolled[0].emplace();
  for (const auto& [slots, bytes] : slots_and_bytes) {
    compiler::RolledValues::Chain chain = {.slots = slots};
    chain.buffers[0] = program.buffers_size();
    program.add_buffers()->set_bytes(bytes);
    rolled[0]->values.chains.push_back(chain);
  }
  if (!compiler::AlignSlots(program, &rolled).ok()) return {};
  std::vector<int> aligned;
  for (const auto& chain : rolled[0]->values.chains) aligned.push_back(chain.slots);
  return aligned;
}

TEST(RollTest, SlotsAreAlignedForTheLeastMemory) {
  EXPECT_THAT(Aligned({{11, 100}, {5, 100}, {2, 100}}), testing::ElementsAre(11, 5, 2));
  // 182 iterations would do without more slots, 14 with one of the first, 104 with one of the
  // second.
  EXPECT_THAT(Aligned({{13, 100}, {7, 100}, {2, 100}}), testing::ElementsAre(14, 7, 2));
  EXPECT_THAT(Aligned({{6, 100}, {3, 100}, {2, 100}}), testing::ElementsAre(6, 3, 2));
  // Seven of one byte are next to nothing beside 8,000 and make a turn of 16 instead of 72.
  EXPECT_THAT(Aligned({{8, 1000}, {9, 1}}), testing::ElementsAre(8, 16));
  EXPECT_THAT(Aligned({{128, 1}, {1, 1000}}), testing::ElementsAre(128, 1));
  EXPECT_THAT(Aligned({{129, 1}}), testing::IsEmpty());
}

TEST(RollTest, AStepOfFewMicroBatchesStaysStraight) {
  EXPECT_FALSE(HasLoops(CompileTiny({.micro_batches = 16})));
  EXPECT_TRUE(HasLoops(CompileTiny({.micro_batches = 17})));
}

}  // namespace
}  // namespace terrace
