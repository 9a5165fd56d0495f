// The checker against every program of a table of layouts, broken in one place in every way of
// mutants.h: each mutant is refused, and the refusal names where, what and on which rank.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>

#include "coordinator/layout/rules.h"
#include "proto/check/program_check.h"
#include "tests/unit/coordinator/compiler/layout_matrix.h"
#include "tests/unit/proto/check/broken_programs.h"
#include "tests/unit/proto/check/mutants.h"

namespace terrace {
namespace {

// One line adds a layout.
struct Row {
  const char* name;
  const char* family;
  const char* precision;
  uint32_t dp = 1, tp = 1, pp = 1, cp = 1, zero = 0;
  const char* schedule = "1f1b";
  const char* recompute = "none";
  bool sequence_parallel = false;
  const char* context = "ring";
  uint32_t shard_size = 0;
  double clip = 1;  // 0: updates come at once where they may
  const char* format = "";
  const char* moments = "";
  const char* gradient = "";
  const char* activations = "";
  const char* gathers = "";
  const char* reduce = "";
  uint32_t reduce_block = 0;
};
const Row kLayouts[] = {
    {.name = "OneRank", .family = "gpt2", .precision = "fp32"},
    {.name = "Data", .family = "llama", .precision = "bf16", .dp = 4},
    {.name = "Zero1", .family = "gpt2", .precision = "fp32", .dp = 2, .zero = 1},
    {.name = "Zero2Hierarchical",
     .family = "llama",
     .precision = "bf16",
     .dp = 4,
     .zero = 2,
     .shard_size = 2},
    {.name = "Zero3OfRoundedShards", .family = "llama", .precision = "bf16", .dp = 2, .zero = 3},
    {.name = "GradientsInBF16", .family = "gpt2", .precision = "bf16", .dp = 2, .gradient = "bf16"},
    {.name = "Zero2OfGradientsInBF16",
     .family = "llama",
     .precision = "bf16",
     .dp = 4,
     .zero = 2,
     .shard_size = 2,
     .gradient = "bf16"},
    {.name = "MomentsInBlocks", .family = "llama", .precision = "fp32", .moments = "int8"},
    {.name = "Zero3OfMomentsInBlocks",
     .family = "gpt2",
     .precision = "bf16",
     .dp = 2,
     .zero = 3,
     .moments = "int8"},
    {.name = "Zero1OfMomentsInBF16",
     .family = "llama",
     .precision = "fp32",
     .dp = 2,
     .zero = 1,
     .moments = "bf16"},
    {.name = "RoundedAlone", .family = "llama", .precision = "bf16", .format = "bf16"},
    {.name = "Zero3Recompute",
     .family = "qwen3",
     .precision = "fp32",
     .dp = 4,
     .zero = 3,
     .recompute = "block"},
    {.name = "Tensor", .family = "gpt2", .precision = "fp32", .tp = 2},
    {.name = "Fp16Tensor", .family = "llama", .precision = "fp16", .dp = 2, .tp = 2},
    {.name = "SequenceWithSharedKeys",
     .family = "llama",
     .precision = "bf16",
     .tp = 4,
     .sequence_parallel = true},
    {.name = "Ring", .family = "llama", .precision = "fp32", .cp = 2},
    {.name = "Ulysses",
     .family = "qwen2",
     .precision = "bf16",
     .dp = 2,
     .cp = 2,
     .context = "ulysses"},
    {.name = "Pipeline", .family = "gpt2", .precision = "fp32", .pp = 4},
    {.name = "InterleavedTied",
     .family = "qwen3",
     .precision = "fp32",
     .pp = 2,
     .schedule = "interleaved"},
    {.name = "ZeroBubble", .family = "llama", .precision = "fp32", .pp = 2, .schedule = "zb-h1"},
    {.name = "VShape", .family = "llama", .precision = "fp32", .pp = 2, .schedule = "zbv"},
    {.name = "BreadthFirst",
     .family = "gpt2",
     .precision = "fp32",
     .dp = 2,
     .pp = 2,
     .zero = 3,
     .schedule = "breadth_first"},
    {.name = "UpdatesAtOnce", .family = "llama", .precision = "fp32", .clip = 0},
    {.name = "UpdatesAtOnceOfShards",
     .family = "qwen3",
     .precision = "fp32",
     .dp = 2,
     .tp = 2,
     .zero = 1,
     .schedule = "breadth_first",
     .clip = 0},
    {.name = "UpdatesAtOnceInRuns",
     .family = "gpt2",
     .precision = "fp32",
     .dp = 2,
     .pp = 2,
     .zero = 3,
     .schedule = "breadth_first",
     .clip = 0},
    {.name = "CodesOfActivations",
     .family = "llama",
     .precision = "bf16",
     .pp = 2,
     .recompute = "selective",
     .activations = "int8"},
    {.name = "CodesOfWeights",
     .family = "llama",
     .precision = "bf16",
     .dp = 2,
     .tp = 2,
     .zero = 3,
     .recompute = "block",
     .gathers = "fp8"},
    {.name = "CodesOfGradients",
     .family = "llama",
     .precision = "bf16",
     .dp = 4,
     .zero = 2,
     .shard_size = 2,
     .reduce = "int8"},
    {.name = "CodesOfGradientsInContext",
     .family = "gpt2",
     .precision = "bf16",
     .pp = 2,
     .cp = 2,
     .zero = 1,
     .reduce = "fp8"},
    {.name = "CodesOfGradientsInTwoLevels",
     .family = "llama",
     .precision = "bf16",
     .dp = 4,
     .cp = 2,
     .zero = 2,
     .reduce = "int4",
     .reduce_block = 2},
    {.name = "AllAtOnce",
     .family = "gpt2",
     .precision = "bf16",
     .dp = 2,
     .tp = 2,
     .pp = 2,
     .cp = 2,
     .zero = 2,
     .recompute = "selective",
     .sequence_parallel = true},
};

LayoutCase CaseOf(const Row& row) {
  LayoutCase c = {row.family, MatrixLayout()};
  v1::Layout& l = c.layout;
  l.set_precision(row.precision);
  l.set_gradient_format(row.gradient);
  l.set_data_parallel(row.dp);
  l.set_tensor_parallel(row.tp);
  l.set_pipeline_parallel(row.pp);
  l.set_context_parallel(row.cp);
  l.set_zero_stage(row.zero);
  l.set_schedule(row.schedule);
  l.set_interleave(TwoChunksByDefault(row.schedule) || InRuns(row.schedule) ? 2 : 1);
  l.set_micro_batches(l.schedule() == "interleaved" ? 4 : 3);
  l.set_recompute(row.recompute);
  l.set_sequence_parallel(row.sequence_parallel);
  l.set_context_type(row.context);
  l.set_shard_size(row.shard_size);
  l.set_parameter_format(row.format);
  l.set_moments_format(row.moments);
  l.set_activation_format(row.activations);
  l.set_gather_format(row.gathers);
  l.set_reduce_format(row.reduce);
  l.set_reduce_block(row.reduce_block);
  return c;
}

class MutationTest : public BrokenPrograms, public testing::WithParamInterface<Row> {
 protected:
  void SetUp() override {
    const LayoutCase c = CaseOf(GetParam());
    auto programs = CompileCase(c, GetParam().clip);
    ASSERT_TRUE(programs.ok()) << Describe(c) << ": " << programs.status();
    programs_ = *std::move(programs);
    ASSERT_EQ(CheckPrograms(programs_), absl::OkStatus()) << Describe(c);
  }
};

TEST_P(MutationTest, EveryWaitThatIsNotRedundantIsMissed) { ExpectNeededWaitsMissed(); }
TEST_P(MutationTest, SwappedSends) { ExpectAllRefused(WithSwappedSends(programs_)); }
TEST_P(MutationTest, DroppedCommunication) { ExpectAllRefused(WithoutACommunication(programs_)); }
TEST_P(MutationTest, SumsMadeTwice) { ExpectAllRefused(WithASumTwice(programs_)); }
TEST_P(MutationTest, WrongGroups) { ExpectAllRefused(InAnotherGroup(programs_)); }
// All of them: a sample rarely has the one that sums over a block of the tensor-parallel ranks.
TEST_P(MutationTest, SquaresSummedOverWrongGroups) {
  for (const Mutant& mutant : InAnotherGroup(programs_)) {
    if (mutant.what.find("sum of squares") != std::string::npos) ExpectRefused(mutant);
  }
}
TEST_P(MutationTest, MicroBatchesLoadedOrSentWrongly) {
  ExpectAllRefused(WithMicroBatchesMixed(programs_));
}
TEST_P(MutationTest, OperandsOfAnotherMicroBatch) {
  ExpectAllRefused(WithAnotherMicroBatch(programs_));
}
TEST_P(MutationTest, DroppedOperations) { ExpectAllRefused(WithoutAnOperation(programs_)); }
TEST_P(MutationTest, ShiftedOffsets) { ExpectAllRefused(WithAnOffsetShifted(programs_)); }

// A rank checks what it was sent again: nothing in it may end the process.
TEST_P(MutationTest, CorruptFieldsNeverCrash) {
  std::mt19937 random(20261123);
  int refused = 0;
  for (int round = 0; round < 100; ++round) {
    const size_t stage = random() % programs_.size();
    const Mutant mutant = {"a field", stage,
                           [&](v1::Program* program) { CorruptOneField(&random, program); }};
    refused += Try(mutant).ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 20);
}

INSTANTIATE_TEST_SUITE_P(Layouts, MutationTest, testing::ValuesIn(kLayouts),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace terrace
