// The checker against programs whose states, weights and gradients rest off the device, broken in
// one place in every way of tier_mutants.h.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "proto/check/program_check.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"
#include "tests/unit/proto/check/broken_programs.h"
#include "tests/unit/proto/check/tier_mutants.h"

namespace terrace {
namespace {

struct Row {
  const char* name;
  const char* family;
  const char* precision;
  uint32_t dp = 1, zero = 0;
  v1::Tier parameter = v1::DEVICE, gradient = v1::DEVICE, optimizer = v1::DEVICE;
  const char* format = "";
  const char* moments = "";
  const char* gradients = "";
};
const Row kRows[] = {
    {.name = "MomentsOnHost", .family = "gpt2", .precision = "fp32", .optimizer = v1::HOST},
    {.name = "StatesOnNvme",
     .family = "llama",
     .precision = "bf16",
     .dp = 2,
     .gradient = v1::NVME,
     .optimizer = v1::NVME},
    {.name = "AllOnHost",
     .family = "qwen3",
     .precision = "bf16",
     .parameter = v1::HOST,
     .gradient = v1::HOST,
     .optimizer = v1::HOST},
    {.name = "AllOnNvme",
     .family = "gpt2",
     .precision = "bf16",
     .dp = 2,
     .parameter = v1::NVME,
     .gradient = v1::NVME,
     .optimizer = v1::NVME},
    {.name = "Zero2OnHost",
     .family = "llama",
     .precision = "fp32",
     .dp = 2,
     .zero = 2,
     .gradient = v1::HOST,
     .optimizer = v1::HOST},
    {.name = "Zero3OnNvme",
     .family = "gpt2",
     .precision = "bf16",
     .dp = 2,
     .zero = 3,
     .parameter = v1::NVME,
     .gradient = v1::NVME,
     .optimizer = v1::NVME},
    {.name = "RoundedOnHost",
     .family = "llama",
     .precision = "bf16",
     .parameter = v1::HOST,
     .gradient = v1::HOST,
     .optimizer = v1::HOST,
     .format = "bf16"},
    {.name = "RoundedOnNvme",
     .family = "qwen3",
     .precision = "fp16",
     .dp = 2,
     .zero = 3,
     .parameter = v1::NVME,
     .gradient = v1::NVME,
     .optimizer = v1::NVME,
     .format = "f16"},
    {.name = "GradientsInBF16OnNvme",
     .family = "llama",
     .precision = "bf16",
     .gradient = v1::NVME,
     .optimizer = v1::NVME,
     .gradients = "bf16"},
    {.name = "MomentsInBlocksOnHost",
     .family = "llama",
     .precision = "fp32",
     .gradient = v1::HOST,
     .optimizer = v1::HOST,
     .moments = "int8"},
    {.name = "MomentsInBlocksOnNvme",
     .family = "gpt2",
     .precision = "fp32",
     .dp = 2,
     .zero = 1,
     .gradient = v1::NVME,
     .optimizer = v1::NVME,
     .moments = "int8"},
    {.name = "RoundedOnDeviceOfMastersOnHost",
     .family = "llama",
     .precision = "bf16",
     .dp = 2,
     .zero = 3,
     .gradient = v1::HOST,
     .optimizer = v1::HOST,
     .format = "bf16"},
};

class OffloadMutationTest : public BrokenPrograms, public testing::WithParamInterface<Row> {
 protected:
  void SetUp() override {
    const Row& row = GetParam();
    TinyJob job = {.family = row.family,
                   .precision = row.precision,
                   .data_parallel = row.dp,
                   .micro_batches = 2,
                   .zero_stage = row.zero};
    job.sizes.layers = 1;
    job.chunk_bytes = 4096;
    job.parameter = row.parameter;
    job.gradient = row.gradient;
    job.optimizer = row.optimizer;
    job.parameter_format = row.format;
    job.moments_format = row.moments;
    job.gradient_format = row.gradients;
    programs_ = CompileStages(job);
    ASSERT_FALSE(programs_.empty());
    ASSERT_EQ(CheckPrograms(programs_), absl::OkStatus()) << Describe(job);
  }
};

TEST_P(OffloadMutationTest, EveryWaitThatIsNotRedundantIsMissed) { ExpectNeededWaitsMissed(); }
TEST_P(OffloadMutationTest, DroppedCopies) { ExpectAllRefused(WithoutACopy(programs_)); }
TEST_P(OffloadMutationTest, SwappedCopies) { ExpectAllRefused(WithSwappedCopies(programs_)); }
TEST_P(OffloadMutationTest, ShiftedCopies) { ExpectAllRefused(WithACopyShifted(programs_)); }
TEST_P(OffloadMutationTest, ShorterCopies) { ExpectAllRefused(WithAShorterCopy(programs_)); }
TEST_P(OffloadMutationTest, UpdatesOfAnotherChunk) {
  ExpectAllRefused(WithAnUpdateOfAnother(programs_));
}
TEST_P(OffloadMutationTest, DroppedOperations) { ExpectAllRefused(WithoutAnOperation(programs_)); }

INSTANTIATE_TEST_SUITE_P(Tiers, OffloadMutationTest, testing::ValuesIn(kRows),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace terrace
