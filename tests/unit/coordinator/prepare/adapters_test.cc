// Adapters on what-if hardware: what people fine-tune on one device, by the plan's bytes and by the
// closed form.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "coordinator/estimate/memory_arithmetic.h"
#include "coordinator/hardware/cluster.h"
#include "coordinator/layout/rules.h"
#include "coordinator/model/presets.h"
#include "coordinator/planner/estimate_memory.h"
#include "coordinator/prepare/evaluate.h"
#include "coordinator/prepare/layout_text.h"
#include "coordinator/prepare/search.h"
#include "tests/unit/coordinator/prepare/open_spec.h"

namespace terrace {
namespace {

struct WhatIf {
  v1::JobSpec spec;
  Model model;
  Budget budget;
};

// Adapters of rank 16 on all linear layers, in bf16, on one device of the cluster.
WhatIf Adapted(std::string_view preset, std::string_view cluster_name, int64_t device_memory) {
  constexpr int64_t kSequence = 2048, kBatch = 16;
  WhatIf job = {.spec = OpenSpec(std::string(FindPreset(preset)->config_json), kSequence, kBatch)};
  job.spec.mutable_resources()->set_nodes_min(1);
  job.spec.mutable_resources()->set_nodes_max(1);
  job.spec.mutable_resources()->set_devices_per_node(1);
  job.spec.mutable_resources()->set_device_memory(device_memory);
  v1::LoraSpec* lora = job.spec.mutable_model()->mutable_lora();
  lora->set_rank(16);
  lora->set_alpha(32);
  lora->add_targets("all-linear");
  const auto cluster = ParseCluster(cluster_name);
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_TRUE(ApplyCluster(*cluster, &job.spec).ok());
  job.model = *ReadModel(job.spec);
  job.budget = WhatIfBudget(job.spec, *cluster);
  return job;
}

v1::Layout OneDevice(const char* recompute) {
  v1::Layout layout;
  layout.set_precision("bf16");
  layout.set_parameter_format("bf16");
  layout.set_micro_batch(2);
  layout.set_micro_batches(8);
  layout.set_bucket_bytes(int64_t{25} << 20);
  layout.set_ranks(1);
  layout.set_nodes(1);
  layout.set_threads_per_rank(1);
  layout.set_device("cuda");
  layout.set_recompute(recompute);
  return Completed(layout);
}

constexpr int64_t kGiB = int64_t{1} << 30;

// Nothing leaves the device, and the weights rest in 16 bits, which nobody asked for.
TEST(AdaptersOnPaperTest, SevenBillionParametersFitCommonDevices) {
  for (const int64_t memory : {int64_t{0}, 16 * kGiB}) {  // all of the 24 GB, or of smaller ones
    const WhatIf job = Adapted("llama-2-7b", "rtx4090x1:1", memory);
    const auto searched = SearchLayouts(job.spec, job.model, job.budget);
    ASSERT_TRUE(searched.ok()) << searched.status();
    const Evaluated& best = searched->evaluated.front();
    EXPECT_TRUE(best.fits) << memory;
    EXPECT_FALSE(best.layout.has_offload()) << LayoutText(best.layout);
    EXPECT_EQ(best.layout.parameter_format(), "bf16");
    EXPECT_LE(best.device_bytes, job.budget.device_memory_bytes);
  }
}

// Weights, gradients and optimizer states of `terrace estimate` are those of the program; alignment
// and rotary tables come on top.
TEST(AdaptersOnPaperTest, TheFormulasAreTheProgramsBytes) {
  const WhatIf job = Adapted("llama-2-7b", "rtx4090x1:1", 0);
  const auto compiled = CompileLayout(job.spec, job.model, job.budget, OneDevice("none"));
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  int64_t bytes = 0;
  for (const v1::Buffer& buffer : compiled->programs[0].buffers()) {
    const bool state = buffer.lifetime() == v1::PERSISTENT || buffer.class_() == v1::GRADIENT;
    if (state && !buffer.name().starts_with("d.frozen")) bytes += buffer.bytes();
  }
  ModelConfig plain = job.model.config;
  plain.lora = {};
  const Model model = BuildModel(plain);
  int64_t by_formula = 0;
  for (const EstimateSection& section :
       EstimateMemory({.model = &model, .sequence_length = 2048})) {
    for (const EstimatedBytes& part : section.cases[0].device) {
      if (section.name == "lora" && part.what != "activations") by_formula += part.bytes;
    }
  }
  EXPECT_GE(bytes, by_formula);
  EXPECT_LT(static_cast<double>(bytes - by_formula), 1e-3 * static_cast<double>(by_formula));
}

void ExpectTheClosedFormIsNear(const WhatIf& job) {
  const MemoryEstimator estimator(EstimateModel(job.spec, job.model));
  for (const char* recompute : {"none", "selective", "block"}) {
    const v1::Layout layout = OneDevice(recompute);
    const auto evaluated = CompileLayout(job.spec, job.model, job.budget, layout);
    ASSERT_TRUE(evaluated.ok()) << evaluated.status();
    const int64_t compiled = BytesOf(evaluated->programs[0], v1::DEVICE);
    EXPECT_NEAR(
        static_cast<double>(estimator.Memory(layout).total()) / static_cast<double>(compiled), 1,
        0.05)
        << recompute << ", dropout " << job.model.config.dropout.adapter;
  }
}

// What is compared by closed form is near to what is compiled.
TEST(AdaptersOnPaperTest, TheClosedFormIsNear) {
  for (const double dropout : {0.0, 0.05}) {
    WhatIf job = Adapted("llama-2-7b", "rtx4090x1:1", 0);
    job.spec.mutable_model()->mutable_lora()->set_dropout(dropout);
    job.model = *ReadModel(job.spec);
    ExpectTheClosedFormIsNear(job);
  }
}

// LOMO (Lv et al. 2023, arXiv 2306.09782) trains all of a 7B on 24 GB: SGD whose gradients are used
// up one by one. Whole they would take 12.6 GiB beside as much of weights.
TEST(LomoOnPaperTest, SevenBillionParametersAreTrainedWholeOnTwentyFourGigabytes) {
  WhatIf job = Adapted("llama-2-7b", "rtx4090x1:1", 0);
  job.spec.mutable_model()->clear_lora();
  job.model = *ReadModel(job.spec);
  job.spec.mutable_train()->set_global_batch(1);
  job.spec.mutable_train()->set_clip_grad_norm(0);
  job.spec.mutable_train()->mutable_optimizer()->set_name("sgd");
  job.spec.mutable_train()->mutable_optimizer()->set_stochastic_rounding(true);
  v1::Layout layout = OneDevice("selective");
  layout.set_micro_batch(1);
  layout.set_micro_batches(1);
  layout.set_stochastic_rounding(true);
  layout.clear_parameter_format();
  layout.set_gradient_format("bf16");
  layout.set_reduce_format("bf16");
  layout.set_optimizer("sgd");
  const auto evaluated = Evaluate(job.spec, job.model, job.budget, Completed(layout));
  ASSERT_TRUE(evaluated.ok()) << evaluated.status();
  EXPECT_TRUE(evaluated->fits);
  EXPECT_LT(evaluated->device_bytes, 20 * kGiB);
}

}  // namespace
}  // namespace terrace
