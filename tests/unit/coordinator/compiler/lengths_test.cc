// Programs with a training sequence for each bucket of lengths.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "coordinator/hardware/profiles.h"
#include "coordinator/simulator/simulate.h"
#include "proto/check/program_check.h"
#include "proto/program/loops.h"
#include "proto/program/sequences.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"
#include "tests/unit/proto/check/mutate.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<int64_t> kLengths = {4, 8, 12};

v1::Sequence* Find(const std::string& name, v1::Program* program) {
  for (v1::Sequence& sequence : *program->mutable_sequences()) {
    if (sequence.name() == name) return &sequence;
  }
  return nullptr;
}

std::vector<TinyJob> JobsWithLengths() {
  std::vector<TinyJob> jobs = {
      {.family = "llama", .data_parallel = 2, .micro_batches = 2},
      {.family = "qwen3", .micro_batches = 2, .pipeline_parallel = 2},
      {.family = "gpt2", .precision = "bf16", .data_parallel = 2, .zero_stage = 2},
      {.family = "qwen2", .data_parallel = 2, .micro_batches = 2, .zero_stage = 3},
      {.family = "gpt2", .tensor_parallel = 2, .sequence_parallel = true},
      {.family = "llama", .context_parallel = 2, .recompute = "block"},
      {.family = "gpt2", .micro_batches = 2, .optimizer = v1::NVME},
      {.family = "llama", .micro_batches = 2, .clip_grad_norm = 0},
      {.family = "llama", .micro_batches = 30, .clip_grad_norm = 0},  // in a loop
      {.family = "qwen2",
       .data_parallel = 2,
       .micro_batches = 2,
       .schedule = "breadth_first",
       .zero_stage = 3,
       .interleave = 2,
       .clip_grad_norm = 0},
      {.family = "gpt2",
       .micro_batches = 2,
       .pipeline_parallel = 2,
       .schedule = "breadth_first",
       .parameter = v1::HOST,
       .optimizer = v1::HOST,
       .clip_grad_norm = 0},
  };
  for (TinyJob& job : jobs) job.lengths = kLengths;
  return jobs;
}

TEST(LengthsTest, EveryLayoutHasOneCheckedSequenceALength) {
  for (const TinyJob& job : JobsWithLengths()) {
    const std::vector<v1::Program> programs = CompileStages(job);
    ASSERT_FALSE(programs.empty());
    EXPECT_EQ(CheckPrograms(programs), absl::OkStatus()) << Describe(job);
    for (const v1::Program& program : programs) {
      EXPECT_EQ(HasLoops(program), job.micro_batches > 2) << Describe(job);
      std::vector<int64_t> lengths;
      for (const v1::Sequence& sequence : program.sequences()) {
        if (IsTrain(sequence.name())) lengths.push_back(LengthOf(program.rules(), sequence));
      }
      EXPECT_THAT(lengths, ElementsAre(12, 4, 8));
    }
  }
}

TEST(LengthsTest, MemoryIsThatOfTheLongest) {
  for (TinyJob job : JobsWithLengths()) {
    const v1::Program with = CompileTiny(job);
    job.lengths.clear();
    const v1::Program without = CompileTiny(job);
    ASSERT_EQ(with.arenas_size(), without.arenas_size());
    for (int i = 0; i < with.arenas_size(); ++i) {
      EXPECT_EQ(with.arenas(i).lower_bound_bytes(), without.arenas(i).lower_bound_bytes())
          << Describe(job);
      // Packed by other buffers' sizes too, so not to the byte.
      EXPECT_LE(static_cast<double>(with.arenas(i).bytes()),
                1.02 * static_cast<double>(without.arenas(i).bytes()))
          << Describe(job);
    }
  }
}

TEST(LengthsTest, ShorterStepsAreSimulatedFaster) {
  TinyJob job = {.family = "llama", .sizes = {.hidden = 64, .sequence = 256}};
  job.lengths = {64, 256};
  const v1::Program program = CompileTiny(job);
  const auto seconds = [&](const std::string& name) {
    return Simulate(program, name, CpuProfile(2))->step_seconds;
  };
  EXPECT_LT(seconds("train/64"), 0.6 * seconds("train"));
}

// ---- what is wrong with one length only ---------------------------------------------------------

void ExpectRefused(const TinyJob& job, size_t stage, const std::string& why,
                   const std::function<void(v1::Program*)>& change) {
  std::vector<v1::Program> programs = CompileStages(job);
  ASSERT_GT(programs.size(), stage);
  change(&programs[stage]);
  EXPECT_THAT(std::string(CheckPrograms(programs).message()), HasSubstr(why));
}

// The first sum over ranks of a gradient in the sequence; false when there is none.
bool RemoveGradientSum(v1::Program* program, v1::Sequence* sequence) {
  for (int i = 0; i < sequence->instructions_size(); ++i) {
    const v1::Instruction& instruction = sequence->instructions(i);
    if (instruction.collective().kind() != v1::ALL_REDUCE) continue;
    const auto buffer = static_cast<int>(instruction.operands(0).buffer());
    if (program->buffers(buffer).class_() != v1::GRADIENT) continue;
    RemoveInstruction(i, sequence);
    return true;
  }
  return false;
}

TEST(LengthsTest, AMissingReductionOfOneLengthIsFound) {
  const TinyJob job = JobsWithLengths()[0];
  for (const char* name : {"train", "train/4", "train/8"}) {
    ExpectRefused(job, 0, absl::StrCat("of '", name, "'"), [&](v1::Program* program) {
      EXPECT_TRUE(RemoveGradientSum(program, Find(name, program)));
    });
  }
}

TEST(LengthsTest, ALengthMustBeThatOfItsName) {
  const TinyJob job = JobsWithLengths()[0];
  ExpectRefused(job, 0, "sequence 'train/8': sequence_length is 4",
                [](v1::Program* program) { Find("train/8", program)->set_sequence_length(4); });
  ExpectRefused(job, 0, "sequence 'train/20': sequence_length is 20", [](v1::Program* program) {
    v1::Sequence* sequence = Find("train/8", program);
    sequence->set_name("train/20");
    sequence->set_sequence_length(20);
    for (v1::Buffer& buffer : *program->mutable_buffers()) {
      if (buffer.sequence() == "train/8") buffer.set_sequence("train/20");
    }
  });
  ExpectRefused(job, 0, "sequence 'eval': sequence_length is 4",
                [](v1::Program* program) { Find("eval", program)->set_sequence_length(4); });
}

TEST(LengthsTest, EveryLengthLoadsWholeBatchesOfItsOwnLength) {
  const TinyJob job = JobsWithLengths()[0];
  ExpectRefused(
      job, 0, "'train/8' (embedding, embedding): operand 0 reads byte 32",
      [](v1::Program* program) {
        for (v1::Instruction& instruction : *Find("train/8", program)->mutable_instructions()) {
          if (instruction.input().kind() != v1::LOAD_BATCH) continue;
          for (v1::Operand& operand : *instruction.mutable_operands()) operand.set_shape(0, 8);
          return;
        }
      });
}

// Positions of the instructions that run `op`.
std::vector<int> All(const char* op, const v1::Sequence& sequence) {
  std::vector<int> found;
  for (int i = FindOp(sequence, op); i >= 0; i = FindOp(sequence, op, i + 1)) found.push_back(i);
  return found;
}

// Updates at once have a factor for each gradient, in every sequence.
TEST(LengthsTest, AFactorOfAnotherGradientInOneLengthIsFound) {
  TinyJob job = {.family = "llama", .micro_batches = 2, .clip_grad_norm = 0};
  job.lengths = kLengths;
  for (const char* name : {"train", "train/4", "train/8"}) {
    ExpectRefused(job, 0, "are not among those that", [&](v1::Program* program) {
      v1::Sequence* sequence = Find(name, program);
      const std::vector<int> factors = All("grad_scale", *sequence);
      ASSERT_GT(factors.size(), 2u);
      *sequence->mutable_instructions(factors[1])->mutable_operands(0) =
          sequence->instructions(factors[0]).operands(0);
    });
  }
}

// The tied embedding of a pipeline: its gradient is summed over the stages in every sequence.
TEST(LengthsTest, ASumOverStagesMissingInOneLengthIsFound) {
  const TinyJob job = JobsWithLengths()[1];
  std::vector<v1::Program> programs = CompileStages(job);
  ASSERT_EQ(programs.size(), 2u);
  for (v1::Program& program : programs) {
    EXPECT_TRUE(RemoveGradientSum(&program, Find("train/4", &program)));
  }
  // What was not summed is noticed where its squares are.
  EXPECT_THAT(std::string(CheckPrograms(programs).message()),
              AllOf(HasSubstr("'train/4'"), HasSubstr("sums over PIPELINE count them 0.5 times")));
}

}  // namespace
}  // namespace terrace
