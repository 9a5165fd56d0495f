// A step that loops changes no bit: losses, gradient norms and weights of jobs of many
// micro-batches equal those of the same steps written out, on threads and in every order that waits
// allow.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "proto/program/loops.h"
#include "tests/system/layout_data.h"

namespace terrace {
namespace {

constexpr int64_t kSteps = 2;
constexpr double kNoNormReaches = 1e30;

// Every micro-batch has rows of its own: one that is taken for another is seen.
JobData Data() {
  return RandomJob(
      TinyModel("llama",
                {.vocabulary = 67, .hidden = 32, .layers = 4, .intermediate = 48, .sequence = 8}),
      /*rows=*/2 * 293, /*length=*/8);
}

// Of activations so large that they leave the device.
JobData WideData() {
  return RandomJob(
      TinyModel("llama",
                {.vocabulary = 67, .hidden = 256, .layers = 2, .intermediate = 48, .sequence = 64}),
      /*rows=*/2 * 293, /*length=*/64);
}

v1::Layout Long(uint32_t micro_batches = 25) {
  v1::Layout layout = MatrixLayout();
  layout.set_micro_batches(micro_batches);
  layout.set_chunk_bytes(3 * 4096);
  return layout;
}

v1::Layout Pipeline(const std::string& schedule) {
  const bool varied = schedule != "1f1b";
  v1::Layout layout = Long(varied ? 261 : 29);
  layout.set_pipeline_parallel(2);
  layout.set_schedule(schedule);
  if (schedule == "interleaved" || schedule == "zbv") layout.set_interleave(2);
  return layout;
}

struct Case {
  std::string name;
  v1::Layout layout;
};

std::vector<Case> OnTheDevice() {
  std::vector<Case> cases = {{"one rank", Long()}};
  for (const uint32_t zero : {0, 1, 2, 3}) {
    cases.push_back({absl::StrCat("dp 2 zero ", zero), Long()});
    cases.back().layout.set_data_parallel(2);
    cases.back().layout.set_zero_stage(zero);
  }
  for (const char* recompute : {"none", "block"}) {
    cases.push_back({absl::StrCat("gathers and activations in 8 bits, ", recompute), Long()});
    v1::Layout& layout = cases.back().layout;
    layout.set_precision("bf16");
    layout.set_data_parallel(2);
    layout.set_zero_stage(3);
    layout.set_recompute(recompute);
    layout.set_gather_format("int8");
    layout.set_activation_format("fp8");
  }
  cases.push_back({"tp 2", Long()});
  cases.back().layout.set_tensor_parallel(2);
  cases.push_back({"block recompute, bf16", Long()});
  cases.back().layout.set_recompute("block");
  cases.back().layout.set_precision("bf16");
  for (const char* schedule : {"1f1b", "zb-h1", "zbv", "interleaved"})
    cases.push_back({schedule, Pipeline(schedule)});
  cases.push_back({"activations in 8 bits, 1f1b", Pipeline("1f1b")});
  cases.back().layout.set_precision("bf16");
  cases.back().layout.set_activation_format("int8");
  return cases;
}

std::vector<Case> Offloaded() {
  std::vector<Case> cases;
  for (const v1::Tier tier : {v1::HOST, v1::NVME}) {
    cases.push_back({absl::StrCat("states on ", v1::Tier_Name(tier)), Long()});
    v1::Offload* offload = cases.back().layout.mutable_offload();
    PutOn(tier, offload->mutable_parameter());
    PutOn(tier, offload->mutable_gradient());
    PutOn(tier, offload->mutable_optimizer());
    // Of a body of four micro-batches: what passes through the host repeats itself only then.
    cases.push_back({absl::StrCat("gradients on ", v1::Tier_Name(tier)), Long(47)});
    PutOn(tier, cases.back().layout.mutable_offload()->mutable_gradient());
    PutOn(tier, cases.back().layout.mutable_offload()->mutable_optimizer());
  }
  return cases;
}

void ExpectSame(const JobResult& a, const JobResult& b) {
  ASSERT_EQ(a.losses.size(), static_cast<size_t>(kSteps));
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.grad_norms, b.grad_norms);
  EXPECT_EQ(a.weights, b.weights);
}

// On threads.
JobResult TrainLoops(const JobData& data, const v1::Layout& layout) {
  JobResult result = TrainLayout(data, layout, kSteps);
  EXPECT_FALSE(result.programs.empty());
  for (const v1::Program& program : result.programs)
    EXPECT_TRUE(HasLoops(program)) << program.stage();
  return result;
}

const RunOptions kStraight = {.straight = true, .turns = 1};

TEST(LoopsBitwiseTest, ThreadsThatIterateAndEveryOrderThatWaitsAllowChangeNothing) {
  const JobData data = Data();
  std::vector<Case> cases = OnTheDevice();
  for (Case& one : Offloaded()) cases.push_back(std::move(one));
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    const JobResult straight = TrainLayout(data, one.layout, kSteps, kStraight);
    ExpectSame(TrainLoops(data, one.layout), straight);
    for (const uint32_t seed : {2, 3, 4})
      ExpectSame(TrainLayout(data, one.layout, kSteps, {.turns = seed}), straight);
  }
}

// Behind a loop gradients are used up one by one as the last micro-batch makes them final.
TEST(LoopsBitwiseTest, UpdatesAtOnceBehindALoopChangeNothing) {
  JobData data = Data();
  std::vector<Case> cases = OnTheDevice();
  for (Case& one : Offloaded()) cases.push_back(std::move(one));
  std::erase_if(cases, [](const Case& one) { return !UpdatesAtOnce(one.layout, 0); });
  ASSERT_GT(cases.size(), 10u);
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    data.train.set_clip_grad_norm(kNoNormReaches);
    const JobResult at_end = TrainLayout(data, one.layout, kSteps, kStraight);
    data.train.set_clip_grad_norm(0);
    ExpectSame(TrainLoops(data, one.layout), at_end);
  }
}

TEST(LoopsBitwiseTest, ActivationsThatLeaveTheDeviceChangeNothing) {
  const JobData data = WideData();
  for (const double part : {0.5, 1.0}) {
    SCOPED_TRACE(part);
    v1::Layout layout = Long();
    layout.set_threads_per_rank(1);
    layout.set_recompute("block");
    layout.mutable_offload()->mutable_activation()->set_device(1 - part);
    layout.mutable_offload()->mutable_activation()->set_host(part);
    ExpectSame(TrainLoops(data, layout), TrainLayout(data, layout, kSteps, kStraight));
  }
}

}  // namespace
}  // namespace terrace
