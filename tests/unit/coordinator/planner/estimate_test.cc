// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/estimate.h"

#include <gtest/gtest.h>

#include "coordinator/compiler/compile.h"
#include "coordinator/model/presets.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/profiles.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace {
namespace {

struct Case {
  const char* preset;
  const char* precision;
  uint32_t micro_batch;
};

TEST(EstimateTest, BytesAreNearTheCompiledArena) {
  for (const Case& one : {Case{"gpt2", "fp32", 2}, Case{"gpt2", "fp32", 8}, Case{"gpt2", "bf16", 4},
                          Case{"qwen3-0.6b", "bf16", 2}, Case{"llama-3.2-1b", "bf16", 1}}) {
    SCOPED_TRACE(testing::Message()
                 << one.preset << " " << one.precision << " " << one.micro_batch);
    v1::JobSpec spec = TinySpec();
    spec.mutable_data()->set_sequence_length(512);
    const Preset* preset = FindPreset(one.preset);
    ASSERT_NE(preset, nullptr);
    const Model model = BuildModel(*ParseModelConfig(preset->config_json, 512));
    v1::Layout layout = TinyLayout({.precision = one.precision});
    layout.set_micro_batch(one.micro_batch);
    const auto programs = Compile({.spec = &spec, .model = &model, .layout = layout});
    ASSERT_TRUE(programs.ok()) << programs.status();
    const double ratio = static_cast<double>(EstimateDeviceBytes(spec, model, layout)) /
                         programs->at(0).arenas(0).bytes();
    EXPECT_GT(ratio, 0.85);
    EXPECT_LT(ratio, 1.15);
  }
}

TEST(EstimateTest, LargerMicroBatchesTakeMoreMemoryAndNoMoreTime) {
  const v1::JobSpec spec = TinySpec();
  const Model model = TinyModel("gpt2");
  v1::Layout small = TinyLayout({}), large = small;
  small.set_micro_batch(1);
  small.set_micro_batches(8);
  large.set_micro_batch(8);
  large.set_micro_batches(1);
  EXPECT_LT(EstimateDeviceBytes(spec, model, small), EstimateDeviceBytes(spec, model, large));
  const v1::HardwareProfile profile = CpuProfile(2);
  EXPECT_GE(EstimateStepSeconds(spec, model, small, profile),
            EstimateStepSeconds(spec, model, large, profile));
}

}  // namespace
}  // namespace terrace
