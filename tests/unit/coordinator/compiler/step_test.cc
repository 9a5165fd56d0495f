// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/step.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace {
namespace {

bool IsOp(const v1::Instruction& instruction, const std::string& op) {
  return instruction.compute().op() == op;
}

TEST(StepTest, EveryTrainableElementIsUpdatedByExactlyOneAdamw) {
  for (const TinyJob& job : TinyJobs()) {
    const v1::Program program = CompileTiny(job);
    std::map<std::pair<uint32_t, int64_t>, int> updates;  // by (buffer, element)
    for (const v1::Instruction& instruction : SequenceOf(program, "train").instructions()) {
      if (!IsOp(instruction, "update")) continue;
      const v1::Operand& weight = instruction.operands(1);
      for (int64_t i = 0; i < weight.shape(0); ++i)
        ++updates[{weight.buffer(), weight.offset() / 4 + i}];
    }
    size_t elements = 0;
    for (const v1::StateRange& range : program.state()) {
      if (range.kind() != v1::WEIGHT) continue;
      const int64_t count = range.rows() * range.columns();
      elements += count;
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_EQ((updates[{range.buffer(), range.offset() / 4 + i}]), 1) << range.tensor();
      }
    }
    EXPECT_EQ(updates.size(), elements) << Describe(job);
  }
}

TEST(StepTest, OnlyTensorsOfTwoOrMoreDimensionsDecay) {
  const v1::Program program = CompileTiny({.family = "qwen2"});
  std::map<std::pair<uint32_t, int64_t>, size_t> dims;  // by (buffer, offset)
  for (const v1::StateRange& range : program.state()) {
    dims[{range.buffer(), range.offset()}] = range.shape_size();
  }
  for (const v1::Instruction& instruction : SequenceOf(program, "train").instructions()) {
    if (!IsOp(instruction, "update")) continue;
    const v1::Operand& weight = instruction.operands(1);
    const bool decays = instruction.compute().update().weight_decay() > 0;
    EXPECT_EQ(decays, (dims.at({weight.buffer(), weight.offset()}) >= 2)) << instruction.text();
  }
}

// A step holds the tokens of two micro-batches, however many it has.
TEST(StepTest, EachBatchIsLoadedWhileTheOneBeforeItIsComputed) {
  const v1::Program program = CompileTiny({.micro_batches = 4});
  const v1::Sequence& train = SequenceOf(program, "train");
  int loaded = -1, begun = -1;
  for (const v1::Instruction& instruction : train.instructions()) {
    if (instruction.input().kind() == v1::LOAD_BATCH) {
      EXPECT_EQ(instruction.micro_batch(), ++loaded);
      EXPECT_LE(loaded, begun + 2) << instruction.id();
      // It follows the computation that stands before it: so it may take that one's memory.
      EXPECT_EQ(instruction.waits_size(), begun < 0 ? 0 : 1) << instruction.id();
    } else if (instruction.has_compute()) {
      begun = std::max(begun, instruction.micro_batch());
      EXPECT_LE(begun, loaded) << instruction.id();
    }
  }
  EXPECT_EQ(loaded, 3);
}

TEST(StepTest, ActivationsOfMicroBatchesShareMemory) {
  const int64_t one = CompileTiny({.micro_batches = 2}).arenas(0).bytes();
  const int64_t many = CompileTiny({.micro_batches = 8}).arenas(0).bytes();
  EXPECT_LT(many, one + 16 * 1024);
}

TEST(StepTest, ScaleComesFromReducedTotalsAndAllBuckets) {
  const v1::Program program = CompileTiny({.data_parallel = 2, .micro_batches = 2});
  int squared_norms = 0, reduces = 0, squares = 0;
  for (const v1::Instruction& instruction : SequenceOf(program, "train").instructions()) {
    squared_norms += IsOp(instruction, "squared_norm");
    reduces += instruction.has_collective();
    if (IsOp(instruction, "grad_scale")) {
      squares = static_cast<int>(instruction.operands(0).shape(0));
      EXPECT_FLOAT_EQ(instruction.compute().clip().clip_grad_norm(), 1.0f);
    }
  }
  EXPECT_GT(squared_norms, 1);
  EXPECT_EQ(squares, squared_norms);
  EXPECT_EQ(reduces, squared_norms + 1);  // the buckets and the totals
}

TEST(StepTest, OneRankReducesNothing) {
  const v1::Program program = CompileTiny({});
  for (const v1::Instruction& instruction : SequenceOf(program, "train").instructions()) {
    EXPECT_FALSE(instruction.has_collective()) << instruction.text();
  }
}

TEST(StepTest, EvalReadsNoGradientAndReportsReducedTotals) {
  const v1::Program program = CompileTiny({.family = "mistral", .data_parallel = 2});
  const v1::Sequence& eval = SequenceOf(program, "eval");
  int collectives = 0;
  for (const v1::Instruction& instruction : eval.instructions()) {
    EXPECT_EQ(instruction.phase(), v1::FORWARD);
    collectives += instruction.has_collective();
    for (const v1::Operand& operand : instruction.operands()) {
      if (operand.access() == v1::ACCESS_UNSPECIFIED) continue;
      EXPECT_NE(program.buffers(operand.buffer()).class_(), v1::GRADIENT);
    }
  }
  EXPECT_EQ(collectives, 1);
  const v1::Instruction& last = eval.instructions(eval.instructions_size() - 1);
  EXPECT_EQ(last.output().kind(), v1::LOSS_TOTAL);
}

// The loss over a vocabulary that tensor-parallel ranks share is computed in chunks of rows.
TEST(StepTest, EvalBringsTheHeadOnceForAllChunksAsTrainDoes) {
  for (const char* family : {"llama", "qwen3"}) {  // a head of its own, and the table
    for (const bool offloaded : {false, true}) {
      const v1::Program program = CompileTiny({.family = family,
                                               .data_parallel = 2,
                                               .tensor_parallel = 2,
                                               .zero_stage = offloaded ? 0u : 3u,
                                               .sizes = {.vocabulary = 300'007, .sequence = 1024},
                                               .parameter = offloaded ? v1::HOST : v1::DEVICE,
                                               .optimizer = offloaded ? v1::HOST : v1::DEVICE,
                                               .chunk_bytes = int64_t{1} << 30});
      std::map<std::string, std::map<std::string, int>> prefetched;  // by sequence and text
      int chunks = 0;
      for (const v1::Sequence& sequence : program.sequences()) {
        for (const v1::Instruction& instruction : sequence.instructions()) {
          chunks += sequence.name() == "eval" && IsOp(instruction, "cross_entropy_rows");
          const bool gathers = instruction.collective().kind() == v1::ALL_GATHER;
          if (gathers || instruction.has_copy()) ++prefetched[sequence.name()][instruction.text()];
        }
      }
      EXPECT_GT(chunks, 4);
      ASSERT_FALSE(prefetched["eval"].empty());
      for (const auto& [text, times] : prefetched["eval"]) {
        EXPECT_LE(times, prefetched["train"][text]) << family << ": " << text;
      }
    }
  }
}

TEST(StepTest, WindowsReachTheAttention) {
  const v1::Program program = CompileTiny({.family = "mistral"});
  int windows = 0;
  for (const v1::Instruction& instruction : SequenceOf(program, "train").instructions()) {
    if (!IsOp(instruction, "attention") && !IsOp(instruction, "attention_grad")) continue;
    EXPECT_EQ(instruction.compute().attention().window(), 5);
    ++windows;
  }
  EXPECT_EQ(windows, 4);
}

}  // namespace
}  // namespace terrace
