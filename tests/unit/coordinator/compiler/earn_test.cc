// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/earn.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "coordinator/compiler/compile.h"
#include "coordinator/model/presets.h"
#include "proto/program_check.h"

namespace terrace {
namespace {

// A Llama of 16 layers on two stages of eight ranks each, whose weights and gradients are large
// beside the activations of a micro-batch. With 16 of them a stage has more buffers than the long
// searches take.
constexpr char kConfig[] =
    R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 1024, "num_hidden_layers": 16,
        "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 2816,
        "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": false})";

struct Job {
  std::string config_json = kConfig;
  int64_t sequence = 1024;
  uint32_t tensor_parallel = 1;
  uint32_t stages = 2;
  std::string device = "cpu";
  std::string schedule = "1f1b";
  uint32_t zero = 0;
  std::string recompute = "none";
  uint32_t micro_batch = 1, micro_batches = 16;
  int64_t device_limit_bytes = 0;
  std::string packing;
  bool search_packings = true;
};

std::vector<v1::Program> CompileJob(const Job& job) {
  v1::JobSpec spec;
  spec.set_name("job");
  spec.mutable_data()->set_sequence_length(job.sequence);
  v1::TrainSpec* train = spec.mutable_train();
  train->set_steps(10);
  train->set_clip_grad_norm(1);
  train->mutable_optimizer()->set_lr(1e-4);
  train->mutable_optimizer()->set_beta1(0.9);
  train->mutable_optimizer()->set_beta2(0.95);
  train->mutable_optimizer()->set_epsilon(1e-8);
  train->mutable_schedule()->set_name("cosine");
  spec.mutable_layout()->set_packing(job.packing);
  v1::Layout layout;
  layout.set_data_parallel(8);
  layout.set_tensor_parallel(job.tensor_parallel);
  layout.set_sequence_parallel(job.tensor_parallel > 1);
  layout.set_pipeline_parallel(job.stages);
  layout.set_schedule(job.schedule);
  layout.set_zero_stage(job.zero);
  layout.set_recompute(job.recompute);
  layout.set_micro_batch(job.micro_batch);
  layout.set_micro_batches(job.micro_batches);
  layout.set_bucket_bytes(int64_t{25} << 20);
  layout.set_precision("bf16");
  layout.set_threads_per_rank(4);
  layout.set_device(job.device);
  const auto config = ParseModelConfig(job.config_json, job.sequence);
  EXPECT_TRUE(config.ok()) << config.status();
  const Model model = BuildModel(*config);
  auto programs = Compile({.spec = &spec,
                           .model = &model,
                           .layout = layout,
                           .device_limit_bytes = job.device_limit_bytes,
                           .search_packings = job.search_packings});
  EXPECT_TRUE(programs.ok()) << programs.status();
  return programs.ok() ? *std::move(programs) : std::vector<v1::Program>();
}

// Against the bytes that live at once in the program as it is without waits that earn reuse.
double OverTheBound(const v1::Arena& arena) {
  const int64_t unearned = arena.unearned_bound_bytes();
  const int64_t bound = unearned > 0 ? unearned : arena.lower_bound_bytes();
  return static_cast<double>(arena.bytes()) / static_cast<double>(bound) - 1;
}

void ExpectWithinOnePercent(const std::vector<v1::Program>& programs, size_t stages) {
  ASSERT_EQ(programs.size(), stages);
  for (const v1::Program& program : programs) {
    SCOPED_TRACE(program.stage());
    EXPECT_LE(OverTheBound(program.arenas(0)), 0.01);
  }
  EXPECT_TRUE(CheckPrograms(programs).ok()) << CheckPrograms(programs);
}

// In one piece each, with the waits that they earn. Compiled once: it takes seconds.
const std::vector<v1::Program>& Contiguous(uint32_t zero) {
  static auto& programs = *new std::map<uint32_t, std::vector<v1::Program>>;
  auto& known = programs[zero];
  if (known.empty()) known = CompileJob({.zero = zero, .packing = "contiguous"});
  return known;
}

int64_t LargestArena(const std::vector<v1::Program>& programs) {
  int64_t largest = 0;
  for (const v1::Program& program : programs) {
    largest = std::max(largest, program.arenas(0).bytes());
  }
  return largest;
}

bool Earned(const std::vector<v1::Program>& programs) {
  return std::any_of(programs.begin(), programs.end(), [](const v1::Program& program) {
    return program.arenas(0).unearned_bound_bytes() > 0;
  });
}

bool Paged(const std::vector<v1::Program>& programs) {
  return std::any_of(programs.begin(), programs.end(), [](const v1::Program& program) {
    return program.arenas(0).aliases_size() > 0;
  });
}

TEST(EarnTest, ShardedStatesOfAPipelineInOnePieceEachFitWithinOnePercentWithWaits) {
  for (const uint32_t zero : {2, 3}) {
    SCOPED_TRACE(zero);
    ExpectWithinOnePercent(Contiguous(zero), 2);
    EXPECT_TRUE(Earned(Contiguous(zero)));
    EXPECT_FALSE(Paged(Contiguous(zero)));
  }
}

TEST(EarnTest, TimeIsSpentOnMemoryOnlyWhereTheDeviceIsTooSmallWithout) {
  const int64_t earned = LargestArena(Contiguous(3));
  // A GPU takes pages only where it is too small.
  const std::vector<v1::Program> roomy =
      CompileJob({.device = "cuda", .zero = 3, .device_limit_bytes = int64_t{1} << 40});
  EXPECT_FALSE(Earned(roomy));
  EXPECT_FALSE(Paged(roomy));
  EXPECT_GT(LargestArena(roomy), earned);
  const std::vector<v1::Program> tight =
      CompileJob({.zero = 3, .device_limit_bytes = earned, .packing = "contiguous"});
  EXPECT_TRUE(Earned(tight));
  EXPECT_FALSE(Paged(tight));
  EXPECT_EQ(LargestArena(tight), earned);
}

TEST(EarnTest, TheHostTakesPagesWhereverOrdersLeaveTooMuch) {
  const std::vector<v1::Program> unlimited = CompileJob({.zero = 2});
  const std::vector<v1::Program> roomy =
      CompileJob({.zero = 3, .device_limit_bytes = int64_t{1} << 40});
  for (const auto* programs : {&unlimited, &roomy}) {
    ExpectWithinOnePercent(*programs, 2);
    EXPECT_TRUE(Paged(*programs));
    EXPECT_FALSE(Earned(*programs));
  }
}

// The bytes alive at once, and half a percent.
int64_t LimitWithPages(const std::vector<v1::Program>& programs) {
  int64_t limit = 0;
  for (const v1::Program& program : programs) {
    const int64_t bound = program.arenas(0).lower_bound_bytes();
    limit = std::max(limit, bound + bound / 200);
  }
  return limit;
}

TEST(EarnTest, WhatDoesNotFitInOnePieceEachGetsPagesAndNoWaits) {
  const int64_t limit = LimitWithPages(CompileJob({.zero = 3, .search_packings = false}));
  const std::vector<v1::Program> paged = CompileJob({.zero = 3, .device_limit_bytes = limit});
  EXPECT_TRUE(Paged(paged));
  EXPECT_FALSE(Earned(paged));
  EXPECT_LE(LargestArena(paged), limit);
  EXPECT_TRUE(CheckPrograms(paged).ok()) << CheckPrograms(paged);
  const std::vector<v1::Program> quick =
      CompileJob({.zero = 3, .device_limit_bytes = limit, .search_packings = false});
  EXPECT_LE(LargestArena(quick), limit) << "a layout that fits is left out when it is compared";
  EXPECT_TRUE(CheckPrograms(quick).ok()) << CheckPrograms(quick);
}

TEST(EarnTest, WhatDoesNotFitWithPagesGetsWaitsToo) {
  const int64_t paged = LargestArena(CompileJob({.zero = 3, .packing = "pages"}));
  const std::vector<v1::Program> small =
      CompileJob({.zero = 3, .device_limit_bytes = paged - paged / 50, .packing = "pages"});
  EXPECT_TRUE(Earned(small));
  EXPECT_LE(LargestArena(small), paged - paged / 50);
  EXPECT_TRUE(CheckPrograms(small).ok()) << CheckPrograms(small);
  EXPECT_FALSE(Earned(CompileJob({.zero = 3, .device_limit_bytes = paged / 2})))
      << "no waits save as much";
}

TEST(EarnTest, PagesThatAreAskedForKeepEveryStageWithinOnePercentWithoutWaits) {
  const std::vector<v1::Program> programs = CompileJob({.zero = 3, .packing = "pages"});
  EXPECT_TRUE(Paged(programs));
  EXPECT_FALSE(Earned(programs));
  for (const v1::Program& program : programs) EXPECT_LE(OverTheBound(program.arenas(0)), 0.01);
  EXPECT_TRUE(CheckPrograms(programs).ok()) << CheckPrograms(programs);
}

// A V schedule of eight stages: no search, since there are thousands of buffers, and nothing that a
// wait could shorten.
TEST(EarnTest, StagesOfALargeModelInAVFitWithinOnePercentOfTheirOwnBound) {
  const std::vector<v1::Program> programs =
      CompileJob({.config_json = std::string(FindPreset("llama-3.1-70b")->config_json),
                  .sequence = 8192,
                  .tensor_parallel = 8,
                  .stages = 8,
                  .schedule = "zbv",
                  .zero = 1,
                  .micro_batches = 16});
  ASSERT_EQ(programs.size(), 8u);
  for (const v1::Program& program : programs) {
    SCOPED_TRACE(program.stage());
    EXPECT_EQ(program.arenas(0).unearned_bound_bytes(), 0);
    EXPECT_LE(OverTheBound(program.arenas(0)), 0.01);
  }
}

TEST(EarnTest, WhatFitsIsLeftAsItIs) {
  for (const v1::Program& program : CompileJob({.zero = 1})) {
    EXPECT_EQ(program.arenas(0).unearned_bound_bytes(), 0);
  }
}

}  // namespace
}  // namespace terrace
