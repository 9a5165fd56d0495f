// Where a buffer has its memory changes no bit: losses, gradients and the whole state of jobs whose
// step buffers lie in pages at second addresses, in another order than those addresses, equal those
// of the same job with every buffer in one piece, whatever else the layout does.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "proto/check/program_check.h"
#include "tests/system/layout_data.h"
#include "tests/unit/proto/check/second_addresses.h"

namespace terrace {
namespace {

constexpr int64_t kSteps = 3;
constexpr int64_t kPage = 4096;

v1::Layout Plain() {
  v1::Layout layout = MatrixLayout();
  layout.set_micro_batches(2);
  layout.set_chunk_bytes(3 * 4096);
  return layout;
}

void ExpectSame(const std::string& family, const v1::Layout& layout) {
  const JobData data = RandomJob(
      TinyModel(family,
                {.vocabulary = 331, .hidden = 64, .layers = 3, .intermediate = 96, .sequence = 16}),
      /*rows=*/8, /*length=*/16);
  const std::string what = absl::StrCat(family, " ", layout.ShortDebugString());
  auto programs = CompileJob(data, layout, "contiguous");
  ASSERT_TRUE(programs.ok()) << programs.status();
  const auto contiguous = TrainPrograms(data, *programs, kSteps);
  ASSERT_TRUE(contiguous.ok()) << contiguous.status();
  for (v1::Program& program : *programs) ASSERT_GT(MoveToSecondAddresses(kPage, &program), 10);
  ASSERT_EQ(CheckPrograms(*programs), absl::OkStatus()) << what;
  const auto pages = TrainPrograms(data, *programs, kSteps);
  ASSERT_TRUE(pages.ok()) << pages.status();
  ASSERT_EQ(pages->losses.size(), static_cast<size_t>(kSteps)) << what;
  EXPECT_EQ(pages->losses, contiguous->losses) << what;
  EXPECT_EQ(pages->grad_norms, contiguous->grad_norms) << what;
  EXPECT_EQ(pages->gradients, contiguous->gradients) << what;
  EXPECT_EQ(pages->weights, contiguous->weights) << what;
  EXPECT_EQ(pages->first_moment, contiguous->first_moment) << what;
  EXPECT_EQ(pages->second_moment, contiguous->second_moment) << what;
}

TEST(PagesBitwiseTest, OneRank) {
  v1::Layout layout = Plain();
  layout.set_precision("bf16");
  layout.set_recompute("selective");
  ExpectSame("qwen3", layout);
}

TEST(PagesBitwiseTest, WeightsThatAreGatheredAndGradientsThatAreReduced) {
  v1::Layout layout = Plain();
  layout.set_data_parallel(2);
  layout.set_zero_stage(3);
  ExpectSame("llama", layout);
}

TEST(PagesBitwiseTest, StagesThatSendAndReceive) {
  v1::Layout layout = Plain();
  layout.set_pipeline_parallel(2);
  layout.set_schedule("zb-h1");
  ExpectSame("gpt2", layout);
}

TEST(PagesBitwiseTest, CopiesToAndFromOtherTiers) {
  v1::Layout layout = Plain();
  PutOn(v1::NVME, layout.mutable_offload()->mutable_parameter());
  PutOn(v1::NVME, layout.mutable_offload()->mutable_gradient());
  PutOn(v1::NVME, layout.mutable_offload()->mutable_optimizer());
  PutOn(v1::HOST, layout.mutable_offload()->mutable_activation());
  ExpectSame("llama", layout);
}

}  // namespace
}  // namespace terrace
