// The checker on programs that the compiler made, and on any bytes.
//
// SPDX-License-Identifier: Apache-2.0
#include "proto/check/program_check.h"

#include <gmock/gmock.h>
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <ctime>
#include <random>
#include <string>

#include "tests/unit/proto/check/checked_program.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(ProgramCheckTest, WhatTheCompilerMakesPasses) {
  for (const TinyJob& job : TinyJobs()) {
    const v1::Program program = CompileTiny(job);
    EXPECT_TRUE(CheckPrograms({program}).ok()) << Describe(job) << ": " << CheckPrograms({program});
  }
  for (const std::string& family : Families()) {
    const Model model = TinyModel(family);
    InferInput input = {.model = &model, .job = "j"};
    input.precisions.set_precision("bf16");
    const auto generates =
        CompileGenerate(input, {.max_length = 12, .prefill_tokens = 5, .score_tokens = 3});
    ASSERT_TRUE(generates.ok()) << generates.status();
    EXPECT_TRUE(CheckProgram(*generates).ok()) << family << ": " << CheckProgram(*generates);
  }
}

// The same program but for its scratch: what one device needs is not enough for the other.
TEST(ProgramCheckTest, WorkspacesAreThoseOfTheProgramsDevice) {
  for (const char* family : {"gpt2", "llama"}) {
    for (const v1::Tier tier : {v1::DEVICE, v1::HOST}) {
      TinyJob job{.family = family, .precision = "bf16", .gradient = tier, .optimizer = tier};
      const v1::JobSpec spec = TinySpec(job.sizes.sequence);
      const Model model = TinyModel(family, job.sizes);
      v1::Layout layout = TinyLayout(job);
      layout.set_device("cuda");
      auto programs = Compile({.spec = &spec, .model = &model, .layout = layout});
      ASSERT_TRUE(programs.ok()) << programs.status();
      EXPECT_TRUE(CheckPrograms(*programs).ok()) << CheckPrograms(*programs);
      v1::Program on_cpu = CompileTiny(job);
      on_cpu.set_device("cuda");
      EXPECT_THAT(Message(on_cpu), HasSubstr("needs a workspace of")) << family;
      on_cpu.set_device("tpu");
      EXPECT_THAT(Message(on_cpu), HasSubstr("device: got 'tpu', must be cpu or cuda"));
    }
  }
}

TEST(ProgramCheckTest, EveryWaitIsNeeded) {
  const v1::Program program = TwoRanks();
  int waits = 0;
  for (int s = 0; s < program.sequences_size(); ++s) {
    for (int i = 0; i < program.sequences(s).instructions_size(); ++i) {
      for (int w = 0; w < program.sequences(s).instructions(i).waits_size(); ++w) {
        v1::Program broken = program;
        auto* list = broken.mutable_sequences(s)->mutable_instructions(i)->mutable_waits();
        list->erase(list->begin() + w);
        EXPECT_THAT(Message(broken),
                    AllOf(HasSubstr("instruction "), HasSubstr("buffer "), HasSubstr("order")))
            << program.sequences(s).name() << " " << i << " without wait " << w;
        ++waits;
      }
    }
  }
  EXPECT_GE(waits, 10);
}

// 50,000 instructions in half a second on the reference machine; slower machines get a margin of 5.
// What else runs here does not count.
TEST(ProgramCheckTest, FiftyThousandInstructionsAreCheckedAtOnce) {
  const v1::Program program =
      CompileTiny({.family = "llama", .data_parallel = 2, .micro_batches = 1000, .straight = true});
  int instructions = 0;
  for (const v1::Sequence& sequence : program.sequences()) {
    instructions += sequence.instructions_size();
  }
  EXPECT_GT(instructions, 50'000);
  const std::clock_t begin = std::clock();
  EXPECT_EQ(CheckProgram(program), absl::OkStatus());
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  EXPECT_LT(seconds, 2.5) << instructions << " instructions";
}

TEST(ProgramCheckTest, CorruptFieldsAreRefusedOrHarmlessButNeverCrash) {
  const v1::Program program = TwoRanks();
  std::mt19937 random(20261121);
  int refused = 0;
  for (int round = 0; round < 1500; ++round) {
    v1::Program corrupt = program;
    CorruptOneField(&random, &corrupt);
    refused += Message(corrupt).empty() ? 0 : 1;
  }
  EXPECT_GT(refused, 500);
}

TEST(ProgramCheckTest, CorruptBytesNeverCrash) {
  const google::protobuf::LogSilencer silence;  // of names that are no UTF-8
  const std::string bytes = TwoRanks().SerializeAsString();
  std::mt19937 random(42);
  for (int round = 0; round < 1500; ++round) {
    std::string corrupt = bytes;
    for (int k = 0; k < 3; ++k) corrupt[random() % corrupt.size()] = static_cast<char>(random());
    v1::Program program;
    if (program.ParseFromString(corrupt)) CheckProgram(program).IgnoreError();
  }
}

TEST(ProgramCheckTest, AShardThatIsGivenToAllRanks) {
  const v1::Program program = CompileTiny({.data_parallel = 2, .zero_stage = 2});
  int told = 0;
  for (int i = 0; i < program.sequences(0).instructions_size(); ++i) {
    if (program.sequences(0).instructions(i).collective().kind() != v1::REDUCE_SCATTER) continue;
    v1::Program broken = program;
    RepeatInstruction(i, Train(&broken));
    v1::Instruction* spread = Train(&broken)->mutable_instructions(i + 1);
    spread->mutable_collective()->set_kind(v1::BROADCAST);
    spread->mutable_operands()->DeleteSubrange(0, 1);
    spread->mutable_operands(0)->set_access(v1::UPDATE);
    EXPECT_THAT(Message(broken), HasSubstr("gives all ranks the shard of one")) << spread->text();
    ++told;
  }
  EXPECT_GT(told, 0);
}

}  // namespace
}  // namespace terrace
