// The checker and loops: steps of any length pass in the time of a short one, and a loop that is
// broken in one place is refused by rank and coordinator.
//
// SPDX-License-Identifier: Apache-2.0
#include "proto/program/loops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "proto/check/program_check.h"
#include "proto/report/live_memory.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"
#include "tests/unit/proto/check/mutate.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string Refusal(const std::vector<v1::Program>& stages) {
  const absl::Status status = CheckPrograms(stages);
  EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

// A step of gradient accumulation: one rank, or several that share their states.
v1::Program Long(uint32_t micro_batches = 100'000, uint32_t zero = 0) {
  return CompileTiny({.family = "llama",
                      .data_parallel = zero == 0 ? 1u : 2u,
                      .micro_batches = micro_batches,
                      .zero_stage = zero,
                      .sizes = {.layers = 1}});
}

v1::Sequence* Train(v1::Program* program) { return program->mutable_sequences(0); }
v1::Loop* LoopOf(v1::Program* program) { return Train(program)->mutable_loops(0); }

// The first instruction of the body that fits.
v1::Instruction* InBody(v1::Program* program,
                        const std::function<bool(const v1::Instruction&)>& fits) {
  const v1::Loop& loop = program->sequences(0).loops(0);
  for (uint32_t i = loop.first(); i < loop.first() + loop.count(); ++i) {
    v1::Instruction* instruction = Train(program)->mutable_instructions(static_cast<int>(i));
    if (fits(*instruction)) return instruction;
  }
  return nullptr;
}

bool Loads(const v1::Instruction& instruction) { return instruction.has_input(); }

// ---- what passes --------------------------------------------------------------------------------

TEST(LoopCheckTest, StepsOfEveryKindPass) {
  for (const uint32_t zero : {0u, 2u, 3u}) {
    for (const char* recompute : {"none", "full"}) {
      const TinyJob job = {.family = "llama",
                           .precision = "bf16",
                           .data_parallel = 2,
                           .micro_batches = 2'000,
                           .zero_stage = zero,
                           .recompute = recompute};
      SCOPED_TRACE(Describe(job));
      const std::vector<v1::Program> stages = CompileStages(job);
      ASSERT_TRUE(HasLoops(stages[0]));
      EXPECT_EQ(CheckPrograms(stages), absl::OkStatus());
    }
  }
}

TEST(LoopCheckTest, StepsWithCodesPass) {
  for (const uint32_t stages : {1u, 2u}) {
    for (const char* recompute : {"none", "block"}) {
      const TinyJob job = {.family = "llama",
                           .precision = "bf16",
                           .data_parallel = 2,
                           .micro_batches = 600,
                           .pipeline_parallel = stages,
                           .zero_stage = 3,
                           .recompute = recompute,
                           .sizes = {.layers = 8},
                           .activation_format = "int8",
                           .gather_format = "fp8"};
      SCOPED_TRACE(Describe(job));
      const std::vector<v1::Program> programs = CompileStages(job);
      ASSERT_TRUE(HasLoops(programs[0]));
      EXPECT_EQ(CheckPrograms(programs), absl::OkStatus());
    }
  }
}

TEST(LoopCheckTest, StepsOnSeveralTiersPass) {
  for (const v1::Tier tier : {v1::HOST, v1::NVME}) {
    const v1::Program program =
        CompileTiny({.micro_batches = 2'000, .gradient = tier, .optimizer = tier});
    ASSERT_TRUE(HasLoops(program));
    EXPECT_EQ(CheckProgram(program), absl::OkStatus());
  }
}

TEST(LoopCheckTest, PipelinesPass) {
  for (const char* schedule : {"1f1b", "zb-h1"}) {
    const TinyJob job = {.family = "llama",
                         .micro_batches = 600,
                         .pipeline_parallel = 2,
                         .schedule = schedule,
                         .sizes = {.layers = 2}};
    SCOPED_TRACE(Describe(job));
    const std::vector<v1::Program> stages = CompileStages(job);
    ASSERT_TRUE(HasLoops(stages[0]));
    EXPECT_EQ(CheckPrograms(stages), absl::OkStatus());
    for (const v1::Program& stage : stages) EXPECT_EQ(CheckProgram(stage), absl::OkStatus());
  }
}

TEST(LoopCheckTest, TheTimeDoesNotDependOnTheTrips) {
  const auto seconds = [](const v1::Program& program) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(CheckProgram(program), absl::OkStatus());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const double some = seconds(Long(40)), many = seconds(Long(100'000));
  EXPECT_LT(many, 10 * some + 0.2) << some << " s for 40 micro-batches";
}

// ---- what is refused ----------------------------------------------------------------------------

struct Broken {
  const char* name;
  std::function<void(v1::Program*)> apply;
  std::string says;
};

std::vector<Broken> BrokenLoops() {
  return {
      {"no trips", [](v1::Program* p) { LoopOf(p)->set_trips(0); }, "must be 1 to 2147483647"},
      {"2^31 trips", [](v1::Program* p) { LoopOf(p)->set_trips(1u << 31); },
       "must be 1 to 2147483647"},
      {"more trips than micro-batches", [](v1::Program* p) { LoopOf(p)->set_trips(100'001); },
       "100001 trips of 1 micro-batches"},
      {"a trip too few", [](v1::Program* p) { LoopOf(p)->set_trips(LoopOf(p)->trips() - 1); },
       "'train'"},
      {"no instructions", [](v1::Program* p) { LoopOf(p)->set_count(0); }, "must hold 1 or more"},
      {"beyond the end", [](v1::Program* p) { LoopOf(p)->set_count(1u << 31); },
       "must hold 1 or more"},
      {"an instruction less", [](v1::Program* p) { LoopOf(p)->set_count(LoopOf(p)->count() - 1); },
       "'train'"},
      {"two that overlap", [](v1::Program* p) { *Train(p)->add_loops() = Train(p)->loops(0); },
       "do not overlap"},
      {"no micro-batches", [](v1::Program* p) { LoopOf(p)->set_micro_batches(0); },
       "must be 1 or more each"},
      {"two micro-batches an iteration", [](v1::Program* p) { LoopOf(p)->set_micro_batches(2); },
       "trips of 2 micro-batches"},
      {"a micro-batch loaded again",
       [](v1::Program* p) {
         v1::Instruction* load = InBody(p, Loads);
         load->set_micro_batch(load->micro_batch() - 1);
       },
       "a second time"},
      {"a loop in eval",
       [](v1::Program* p) { *p->mutable_sequences(1)->add_loops() = Train(p)->loops(0); },
       "only sequences that train have loops"},
      {"the caching allocator", [](v1::Program* p) { p->set_allocator("caching"); }, ""},
  };
}

TEST(LoopCheckTest, BrokenLoopsAreRefused) {
  const v1::Program whole = Long();
  ASSERT_EQ(CheckProgram(whole), absl::OkStatus());
  for (const Broken& broken : BrokenLoops()) {
    v1::Program program = whole;
    broken.apply(&program);
    const absl::Status of_rank = CheckProgram(program);
    EXPECT_EQ(of_rank.code(), absl::StatusCode::kInvalidArgument) << broken.name;
    EXPECT_THAT(Refusal({program}), HasSubstr(broken.says)) << broken.name;
    EXPECT_THAT(Refusal({program}), HasSubstr(std::string(of_rank.message()))) << broken.name;
  }
}

// Every operand that takes a value in turn, with a slot too few, and with the next one.
TEST(LoopCheckTest, SlotsAreNotTakenWrongly) {
  for (const uint32_t zero : {0u, 3u}) {
    const v1::Program whole = Long(1'000, zero);
    const v1::Loop loop = whole.sequences(0).loops(0);
    int tried = 0;
    for (uint32_t i = loop.first(); i < loop.first() + loop.count(); ++i) {
      const v1::Instruction& instruction = whole.sequences(0).instructions(static_cast<int>(i));
      for (int o = 0; o < instruction.operands_size(); ++o) {
        if (instruction.operands(o).slots() == 0) continue;
        for (const int moved : {-1, 1}) {
          v1::Program program = whole;
          v1::Operand* operand =
              Train(&program)->mutable_instructions(static_cast<int>(i))->mutable_operands(o);
          operand->set_slot(operand->slot() + moved);
          EXPECT_NE(Refusal({program}), "")
              << "operand " << o << " of instruction " << i << " moved by " << moved;
          ++tried;
        }
      }
    }
    EXPECT_GT(tried, 10);
  }
}

TEST(LoopCheckTest, ASlotTooFewIsRefused) {
  const v1::Program whole = Long(1'000, 3);
  std::vector<std::pair<uint32_t, uint32_t>> turns;
  for (const v1::Instruction& instruction : whole.sequences(0).instructions()) {
    for (const v1::Operand& operand : instruction.operands()) {
      if (operand.slots() > 1) turns.emplace_back(operand.buffer(), operand.slots());
    }
  }
  ASSERT_FALSE(turns.empty());
  for (const auto& [first, slots] : turns) {
    v1::Program program = whole;
    for (v1::Instruction& instruction : *Train(&program)->mutable_instructions()) {
      for (v1::Operand& operand : *instruction.mutable_operands()) {
        if (operand.slots() > 1 && operand.buffer() == first) operand.set_slots(slots - 1);
      }
    }
    EXPECT_NE(Refusal({program}), "") << "slots of buffer " << first;
  }
}

// What a change in one place does to the body of a loop.
using Change = std::function<bool(v1::Instruction* instruction)>;

// The checker's verdict on a loop is that of the same program written out to its last iteration,
// which needs no rule about loops. `changes` are tried one by one at every instruction of the body;
// one that returns false has nothing to change there. With `may_be_stricter` rules about loops may
// refuse what is harmless when written out. Returns how many were refused.
int ExpectSameVerdicts(const v1::Program& whole, const std::vector<Change>& changes,
                       bool may_be_stricter = false) {
  const v1::Loop loop = whole.sequences(0).loops(0);
  EXPECT_GT(IterationsToLeaveOut(whole), 0);
  int refused = 0;
  for (uint32_t i = loop.first(); i < loop.first() + loop.count(); ++i) {
    for (size_t k = 0; k < changes.size(); ++k) {
      v1::Program program = whole;
      v1::Instruction* instruction = Train(&program)->mutable_instructions(static_cast<int>(i));
      if (!changes[k](instruction)) continue;
      const absl::Status written = CheckProgram(WriteOut(program, 0).program);
      const std::string refusal = Refusal({program});
      if (may_be_stricter && !refusal.empty()) {
        ++refused;
        continue;
      }
      EXPECT_EQ(refusal.empty(), written.ok())
          << "change " << k << " of instruction " << i << ": " << refusal << " | " << written;
      refused += refusal.empty() ? 0 : 1;
    }
  }
  return refused;
}

// Steps with waits inside an iteration and across iterations.
std::vector<v1::Program> WithWaits() {
  return {Long(40, 3), CompileTiny({.micro_batches = 40,
                                    .parameter = v1::HOST,
                                    .gradient = v1::HOST,
                                    .optimizer = v1::HOST})};
}

TEST(LoopCheckTest, AWaitThatIsDroppedIsMissedAsInTheWrittenOutProgram) {
  std::vector<Change> changes;
  for (int w = 0; w < 3; ++w) {
    changes.push_back([w](v1::Instruction* instruction) {
      if (instruction->waits_size() <= w) return false;
      instruction->mutable_waits()->erase(instruction->mutable_waits()->begin() + w);
      return true;
    });
    changes.push_back([w](v1::Instruction* instruction) {
      if (instruction->back_waits_size() <= w) return false;
      instruction->mutable_back_waits()->DeleteSubrange(w, 1);
      return true;
    });
    changes.push_back([w](v1::Instruction* instruction) {
      if (instruction->back_waits_size() <= w) return false;
      v1::BackWait* wait = instruction->mutable_back_waits(w);
      wait->set_iterations(wait->iterations() + 1);
      return true;
    });
  }
  for (const v1::Program& whole : WithWaits()) EXPECT_GT(ExpectSameVerdicts(whole, changes), 10);
}

TEST(LoopCheckTest, AValueOfAnotherIterationIsRefusedAsInTheWrittenOutProgram) {
  std::vector<Change> changes;
  for (int o = 0; o < 8; ++o) {
    for (const int by : {-1, 1, 2}) {
      changes.push_back([o, by](v1::Instruction* instruction) {
        if (instruction->operands_size() <= o || instruction->operands(o).slots() == 0)
          return false;
        instruction->mutable_operands(o)->set_slot(instruction->operands(o).slot() + by);
        return true;
      });
    }
  }
  for (const v1::Program& whole : WithWaits())
    EXPECT_GT(ExpectSameVerdicts(whole, changes, /*may_be_stricter=*/true), 100);
}

TEST(LoopCheckTest, ASumThatIsBegunAgainInEachIterationIsRefused) {
  v1::Program program = Long();
  v1::Instruction* product = InBody(&program, [](const v1::Instruction& instruction) {
    return instruction.compute().op() == "matmul" && instruction.compute().matmul().accumulate();
  });
  ASSERT_NE(product, nullptr);
  product->mutable_compute()->mutable_matmul()->set_accumulate(false);
  product->mutable_operands(2)->set_access(v1::WRITE);
  EXPECT_THAT(Refusal({program}),
              AllOf(HasSubstr("contributions of 100000 micro-batches"), HasSubstr("buffer ")));
}

TEST(LoopCheckTest, ARowOfAnotherMicroBatchIsRefused) {
  const v1::Program whole = Long();
  const auto has_row = [](const v1::Instruction& instruction) {
    for (const v1::Operand& operand : instruction.operands()) {
      if (operand.offset_step() != 0) return true;
    }
    return false;
  };
  for (const int64_t change : {0, 4, -8, 16}) {
    v1::Program program = whole;
    v1::Instruction* instruction = InBody(&program, has_row);
    ASSERT_NE(instruction, nullptr);
    for (v1::Operand& operand : *instruction->mutable_operands()) {
      if (operand.offset_step() != 0) operand.set_offset_step(change);
    }
    EXPECT_NE(Refusal({program}), "") << change;
  }
}

// A refusal names the instruction as it is in the program that was sent, and the iteration.
TEST(LoopCheckTest, ARefusalNamesInstructionAndIteration) {
  v1::Program program = Long();
  v1::Instruction* product = InBody(&program, [](const v1::Instruction& instruction) {
    return instruction.compute().op() == "matmul";
  });
  product->mutable_operands(0)->set_offset(-4);
  EXPECT_THAT(Refusal({program}),
              AllOf(HasSubstr(absl::StrCat("instruction ", product->id(), " of 'train'")),
                    HasSubstr("iteration 0)")));
}

// As from the wire: neither the checker nor those who look at memory may fall for a loop that lies.
TEST(LoopCheckTest, CorruptFieldsOfLoopsAreRefusedOrHarmlessButNeverCrash) {
  std::mt19937 random(20261125);
  int refused = 0;
  for (const v1::Program& whole : WithWaits()) {
    for (int round = 0; round < 1000; ++round) {
      v1::Program corrupt = whole;
      if (round % 3 == 0) {
        CorruptOneField(&random, LoopOf(&corrupt));
      } else {
        CorruptOneField(&random, Train(&corrupt));
      }
      refused += Refusal({corrupt}).empty() ? 0 : 1;
      const auto memory = LiveMemory::Create(&corrupt);
      if (memory.ok()) memory->Timeline(/*sequence=*/0, /*points_max=*/10, /*largest_max=*/3);
    }
  }
  EXPECT_GT(refused, 800);
}

TEST(LoopCheckTest, StagesWhoseLoopsDoNotGoTogetherAreRefused) {
  const std::vector<v1::Program> whole = CompileStages(
      {.family = "llama", .micro_batches = 600, .pipeline_parallel = 2, .sizes = {.layers = 2}});
  ASSERT_EQ(CheckPrograms(whole), absl::OkStatus());
  for (size_t stage = 0; stage < whole.size(); ++stage) {
    std::vector<v1::Program> stages = whole;
    LoopOf(&stages[stage])->set_trips(LoopOf(&stages[stage])->trips() - 1);
    EXPECT_NE(Refusal(stages), "") << "trips of stage " << stage;
    stages = whole;
    LoopOf(&stages[stage])->set_micro_batches(2);
    EXPECT_NE(Refusal(stages), "") << "micro-batches of stage " << stage;
    stages = whole;
    Train(&stages[stage])->clear_loops();
    EXPECT_NE(Refusal(stages), "") << "loop of stage " << stage;
    stages = whole;
    v1::Instruction* message = InBody(&stages[stage], [](const v1::Instruction& instruction) {
      return instruction.has_transfer();
    });
    ASSERT_NE(message, nullptr);
    message->set_micro_batch(message->micro_batch() - 1);
    EXPECT_THAT(Refusal(stages), HasSubstr("micro-batch")) << "message of stage " << stage;
  }
}

}  // namespace
}  // namespace terrace
