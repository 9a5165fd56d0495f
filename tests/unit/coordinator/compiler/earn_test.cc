// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/earn.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "coordinator/compiler/compile.h"
#include "coordinator/model/presets.h"
#include "proto/program_check.h"

namespace terrace {
namespace {

// A Llama of 16 layers on two stages of eight ranks each, whose weights and gradients are large
// beside the activations of a micro-batch.
constexpr char kConfig[] =
    R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 1024, "num_hidden_layers": 16,
        "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 2816,
        "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": false})";

std::vector<v1::Program> CompileLlama(const std::string& schedule, uint32_t zero) {
  v1::JobSpec spec;
  spec.set_name("llama");
  spec.mutable_data()->set_sequence_length(1024);
  v1::TrainSpec* train = spec.mutable_train();
  train->set_steps(10);
  train->set_clip_grad_norm(1);
  train->mutable_optimizer()->set_lr(1e-4);
  train->mutable_optimizer()->set_beta1(0.9);
  train->mutable_optimizer()->set_beta2(0.95);
  train->mutable_optimizer()->set_epsilon(1e-8);
  train->mutable_schedule()->set_name("cosine");
  v1::Layout layout;
  layout.set_data_parallel(8);
  layout.set_pipeline_parallel(2);
  layout.set_schedule(schedule);
  layout.set_zero_stage(zero);
  layout.set_recompute("none");
  layout.set_micro_batch(1);
  layout.set_micro_batches(8);
  layout.set_bucket_bytes(int64_t{25} << 20);
  layout.set_precision("bf16");
  layout.set_threads_per_rank(4);
  const auto config = ParseModelConfig(kConfig, 1024);
  EXPECT_TRUE(config.ok()) << config.status();
  const Model model = BuildModel(*config);
  auto programs = Compile({.spec = &spec, .model = &model, .layout = layout});
  EXPECT_TRUE(programs.ok()) << programs.status();
  return programs.ok() ? *std::move(programs) : std::vector<v1::Program>();
}

// Against the bytes that live at once in the program as it is without waits that earn reuse.
double OverTheBound(const v1::Arena& arena) {
  const int64_t unearned = arena.unearned_bound_bytes();
  const int64_t bound = unearned > 0 ? unearned : arena.lower_bound_bytes();
  return static_cast<double>(arena.bytes()) / static_cast<double>(bound) - 1;
}

TEST(EarnTest, ShardedStatesOfAPipelineFitWithinOnePercent) {
  for (const uint32_t zero : {2, 3}) {
    const std::vector<v1::Program> programs = CompileLlama("1f1b", zero);
    ASSERT_EQ(programs.size(), 2u);
    for (const v1::Program& program : programs) {
      SCOPED_TRACE(program.stage());
      EXPECT_LE(OverTheBound(program.arenas(0)), 0.01) << "zero " << zero;
    }
    EXPECT_TRUE(CheckPrograms(programs).ok()) << CheckPrograms(programs);
  }
}

TEST(EarnTest, WhatFitsIsLeftAsItIs) {
  for (const v1::Program& program : CompileLlama("1f1b", 1)) {
    EXPECT_EQ(program.arenas(0).unearned_bound_bytes(), 0);
  }
}

}  // namespace
}  // namespace terrace
