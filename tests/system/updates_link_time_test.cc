// Over a link that a step waits for, steps whose gradients are used up at once take as long as the
// simulator says.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <ostream>
#include <string>
#include <vector>

#include "coordinator/hardware/profiles.h"
#include "coordinator/simulator/simulate.h"
#include "tests/system/layout_data.h"

namespace terrace {
namespace {

constexpr uint32_t kRanks = 2;
constexpr int64_t kLayers = 10, kLength = 128;
constexpr int64_t kSteps = 5;
// The link needs so many times the seconds that computation takes.
constexpr double kCommunication = 2.5;
constexpr double kError = 0.15;

const JobData& Data() {
  static const auto* data = [] {
    auto* made = new JobData(RandomJob(TinyModel("llama", {.vocabulary = 256,
                                                           .hidden = 256,
                                                           .layers = kLayers,
                                                           .intermediate = 512,
                                                           .sequence = kLength}),
                                       /*rows=*/8, kLength));
    made->train.set_clip_grad_norm(0);
    return made;
  }();
  return *data;
}

struct Row {
  const char* name;
  const char* schedule;
  uint32_t zero;
};

v1::Layout LayoutOf(const Row& row) {
  v1::Layout layout = MatrixLayout();
  layout.set_data_parallel(kRanks);
  layout.set_zero_stage(row.zero);
  layout.set_micro_batch(4);
  layout.set_micro_batches(2);
  layout.set_bucket_bytes(1 << 20);
  layout.set_schedule(row.schedule);
  if (row.schedule == std::string("breadth_first")) layout.set_interleave(kLayers);
  return layout;
}

struct StepTimes {
  double total = 0, compute = 0;  // of the rank that takes longest
};

// The quickest step but the first: ranks share the machine with whoever else uses it.
StepTimes Quickest(const JobResult& result) {
  StepTimes quickest = {.total = 1e9};
  for (size_t step = 1; step < result.losses.size(); ++step) {
    StepTimes times;
    for (const auto& of_rank : result.times) {
      times.total = std::max(times.total, of_rank[step].total);
      times.compute = std::max(times.compute, of_rank[step].compute);
    }
    if (times.total < quickest.total) quickest = times;
  }
  return quickest;
}

// Rates at which the simulator computes for as long as was measured.
v1::HardwareProfile ProfileOf(const std::vector<v1::Program>& programs, double compute_seconds) {
  v1::HardwareProfile profile = CpuProfile(1, "");
  const auto simulation = Simulate(programs, "train", profile);
  EXPECT_TRUE(simulation.ok()) << simulation.status();
  const double faster = simulation->compute_seconds / compute_seconds;
  profile.set_f32_flops_per_second(profile.f32_flops_per_second() * faster);
  profile.set_memory_bytes_per_second(profile.memory_bytes_per_second() * faster);
  profile.set_instruction_overhead_seconds(profile.instruction_overhead_seconds() / faster);
  return profile;
}

class UpdatesLinkTimeTest : public testing::TestWithParam<Row> {};

TEST_P(UpdatesLinkTimeTest, AStepTakesAsLongAsSimulated) {
  const v1::Layout layout = LayoutOf(GetParam());
  ASSERT_TRUE(UpdatesAtOnce(layout, 0));
  const JobResult fast = TrainLayout(Data(), layout, kSteps);
  ASSERT_EQ(fast.times.size(), kRanks);
  double sent = 0;
  for (const auto& [group, bytes] : fast.sent_per_step[0]) sent += static_cast<double>(bytes);
  const double rate = sent / (kCommunication * Quickest(fast).compute);
  const JobResult slow = TrainLayout(Data(), layout, kSteps, {.link = {.bytes_per_second = rate}});
  EXPECT_EQ(slow.losses, fast.losses);
  EXPECT_EQ(slow.weights, fast.weights);
  const auto [measured, compute] = Quickest(slow);
  v1::HardwareProfile profile = ProfileOf(fast.programs, compute);
  profile.set_link_bytes_per_second(rate);
  profile.set_link_latency_seconds(0);
  const auto simulation = Simulate(fast.programs, "train", profile);
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  const double simulated = simulation->step_seconds;
  EXPECT_GT(simulation->exposed_communication_seconds, 0.3 * simulated);
  std::printf(
      "%s: %.0f ms of computation, %.1f MB/s: %.1f ms a step, simulated %.1f ms (%+.1f %%)\n",
      GetParam().name, compute * 1e3, rate * 1e-6, measured * 1e3, simulated * 1e3,
      100 * (measured / simulated - 1));
  EXPECT_NEAR(measured, simulated, kError * simulated);
}

void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

std::string NameOf(const testing::TestParamInfo<Row>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Layouts, UpdatesLinkTimeTest,
                         testing::Values(Row{"Buckets", "1f1b", 0},
                                         Row{"BucketsInRuns", "breadth_first", 0},
                                         Row{"Shards", "1f1b", 1},
                                         Row{"ShardsInRuns", "breadth_first", 2},
                                         Row{"GatheredInRuns", "breadth_first", 3}),
                         NameOf);

}  // namespace
}  // namespace terrace
