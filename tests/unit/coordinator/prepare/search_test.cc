// What the search tries, and what it chooses: against whole steps, against the simulator, and for
// models and clusters whose good layouts are known.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/hardware/cluster.h"
#include "coordinator/hardware/profiles.h"
#include "coordinator/layout/rules.h"
#include "coordinator/model/presets.h"
#include "coordinator/prepare/evaluate.h"
#include "coordinator/prepare/layout_text.h"
#include "coordinator/prepare/offload_report.h"
#include "tests/unit/coordinator/prepare/open_spec.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;

struct WhatIf {
  v1::JobSpec spec;
  Model model;
  Budget budget;
};

WhatIf PaperJob(std::string_view preset, std::string_view cluster_name, int64_t sequence,
                int64_t batch) {
  WhatIf job = {.spec = OpenSpec(std::string(FindPreset(preset)->config_json), sequence, batch)};
  job.spec.mutable_resources()->set_nodes_min(1);
  job.spec.mutable_resources()->set_nodes_max(1);
  job.spec.mutable_resources()->set_devices_per_node(1);
  const auto cluster = ParseCluster(cluster_name);
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_TRUE(ApplyCluster(*cluster, &job.spec).ok());
  job.model = *ReadModel(job.spec);
  job.budget = WhatIfBudget(job.spec, *cluster);
  return job;
}

// ---- samples

struct Many {
  uint32_t stages = 1;
  const char* schedule = "1f1b";
  uint32_t zero = 0;
  const char* recompute = "none";
};

// Of a model whose layers count: 8 of them.
v1::Layout LayoutOf(const Many& many) {
  v1::Layout layout;
  layout.set_pipeline_parallel(many.stages);
  layout.set_data_parallel(4);
  layout.set_schedule(many.schedule);
  layout.set_zero_stage(many.zero);
  layout.set_recompute(many.recompute);
  layout.set_micro_batch(1);
  layout.set_bucket_bytes(int64_t{25} << 20);
  layout.set_precision("bf16");
  layout.set_threads_per_rank(2);
  layout.set_ranks(4 * many.stages);
  layout.set_nodes(1);
  return Completed(layout);
}

TEST(EvaluateTest, ALoopIsCompiledHoweverLong) {
  WhatIf job = PaperJob("gpt2", "h100x8:1", 1024, 4 * 100'000);
  for (const Many& many : std::vector<Many>{{.zero = 3},
                                            {.stages = 2, .zero = 1},
                                            {.stages = 2, .schedule = "interleaved"},
                                            {.stages = 2, .schedule = "zb-h1"},
                                            {.stages = 2, .schedule = "zbv", .zero = 1}}) {
    v1::Layout layout = LayoutOf(many);
    layout.set_micro_batches(100'000);
    SCOPED_TRACE(LayoutText(layout));
    const auto tried = CompileLayout(job.spec, job.model, job.budget, layout);
    ASSERT_TRUE(tried.ok()) << tried.status();
    EXPECT_EQ(tried->programs[0].rules().micro_batches(), 100'000u);
    EXPECT_LT(tried->programs[0].sequences(0).instructions_size(), 20'000);
  }
}

// The straight list of few micro-batches packs better where passes of several kinds take turns.
TEST(EvaluateTest, AStepOfFewMicroBatchesIsWrittenOutAndCompiledWhole) {
  WhatIf job = PaperJob("gpt2", "h100x8:1", 1024, 4 * 48);
  for (const char* schedule : {"interleaved", "zb-h1", "zbv", "gpipe", "breadth_first"}) {
    v1::Layout layout = LayoutOf({.stages = 2, .schedule = schedule});
    layout.set_micro_batches(48);
    SCOPED_TRACE(LayoutText(layout));
    const auto tried = CompileLayout(job.spec, job.model, job.budget, layout);
    ASSERT_TRUE(tried.ok()) << tried.status();
    const v1::Program& program = tried->programs[0];
    EXPECT_EQ(program.rules().micro_batches(), 48u);
    EXPECT_EQ(program.sequences(0).loops_size(), 0);
    EXPECT_EQ(tried->device_bytes,
              std::max(BytesOf(program, v1::DEVICE), BytesOf(tried->programs[1], v1::DEVICE)));
  }
}

// ---- what is chosen

TEST(SearchTest, Fp8IsRefusedByNameWhereTheDeviceHasNoUnitsForIt) {
  WhatIf job = PaperJob("gpt2", "a100x8:1", 128, 8);
  job.spec.mutable_train()->set_precision("fp8");
  const auto refused = SearchLayouts(job.spec, job.model, job.budget);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()),
              testing::AllOf(testing::HasSubstr("train.precision: got 'fp8', but A100-80GB"),
                             testing::HasSubstr("set train.precision to bf16")));
  job.spec.mutable_train()->set_precision("bf16");
  v1::PrecisionRule* rule = job.spec.mutable_train()->add_precision_rules();
  rule->set_where("mlp");
  rule->set_precision("fp8");
  EXPECT_THAT(std::string(SearchLayouts(job.spec, job.model, job.budget).status().message()),
              testing::AllOf(testing::HasSubstr("train.precision.layers: got 'fp8'"),
                             testing::HasSubstr("set train.precision.layers to bf16")));
  job = PaperJob("gpt2", "h100x8:1", 128, 8);
  job.spec.mutable_train()->set_precision("fp8");
  EXPECT_TRUE(SearchLayouts(job.spec, job.model, job.budget).ok());
}

TEST(SearchTest, TheSameInputGivesTheSameLayoutsInTheSameOrder) {
  const WhatIf job = PaperJob("gpt2-xl", "a100-40gbx8:1", 1024, 64);
  const auto first = SearchLayouts(job.spec, job.model, job.budget);
  const auto second = SearchLayouts(job.spec, job.model, job.budget);
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_EQ(first->evaluated.size(), second->evaluated.size());
  EXPECT_EQ(first->candidates, second->candidates);
  for (size_t i = 0; i < first->evaluated.size(); ++i) {
    EXPECT_EQ(first->evaluated[i].layout.SerializeAsString(),
              second->evaluated[i].layout.SerializeAsString());
    EXPECT_EQ(first->evaluated[i].simulation.step_seconds,
              second->evaluated[i].simulation.step_seconds);
  }
}

// A table of many more, with seconds: tests/bench/search_bench.cc --ordinary.
TEST(SearchTest, OrdinaryPlansCostLittle) {
  struct Case {
    const char* preset;
    const char* cluster;
    int64_t sequence, batch;
    uint32_t tp;
  };
  for (const Case& c : {Case{"llama-3.1-8b", "h100x8:1", 2048, 8, 0},
                        Case{"llama-3.1-8b", "a100-40gbx8:1", 4096, 256, 0},
                        Case{"llama-2-7b", "a100-40gbx8:1", 1024, 64, 2},
                        Case{"llama-2-7b", "a100-40gbx8:1", 1024, 256, 2}}) {
    WhatIf job = PaperJob(c.preset, c.cluster, c.sequence, c.batch);
    job.spec.mutable_layout()->set_tp(c.tp);
    SCOPED_TRACE(absl::StrCat(c.preset, " ", c.cluster, " ", c.sequence, " ", c.batch));
    SearchCost cost;
    const auto searched = SearchLayouts(job.spec, job.model, job.budget, {}, &cost);
    ASSERT_TRUE(searched.ok()) << searched.status();
    EXPECT_TRUE(searched->evaluated.front().fits);
    EXPECT_LE(cost.compared, 26'000);
    EXPECT_LE(cost.instructions, 240'000);  // 228,355 seen
  }
}

// What the field runs: fully sharded data parallelism inside a node, nothing on the host.
TEST(SearchTest, EightBillionParametersOnEightDevicesAreShardedAndStayOnThem) {
  const WhatIf job = PaperJob("llama-3.1-8b", "h100x8:1", 8192, 64);
  const auto searched = SearchLayouts(job.spec, job.model, job.budget);
  ASSERT_TRUE(searched.ok()) << searched.status();
  const Evaluated& best = searched->evaluated.front();
  EXPECT_TRUE(best.fits);
  EXPECT_EQ(best.layout.tensor_parallel(), 1u) << LayoutText(best.layout);
  EXPECT_GE(best.layout.zero_stage(), 1u);
  EXPECT_FALSE(best.layout.has_offload());
}

// 14.8 billion parameters on one GPU of 80 GB with 400 GiB on the host: with 1f1b each micro-batch
// would bring all weights, or gradients, and wait for them.
TEST(SearchTest, AModelLargerThanItsDeviceRunsLayerByLayer) {
  WhatIf job = PaperJob("qwen3-14b", "h100x1:1", 1024, 256);
  job.spec.mutable_resources()->set_host_memory(int64_t{360} << 30);
  job.spec.mutable_layout()->set_micro_batch(8);
  const auto searched = SearchLayouts(job.spec, job.model, job.budget);
  ASSERT_TRUE(searched.ok()) << searched.status();
  const Evaluated& best = searched->evaluated.front();
  EXPECT_TRUE(best.fits);
  EXPECT_EQ(best.layout.schedule(), "breadth_first") << LayoutText(best.layout);
  EXPECT_LT(best.simulation.exposed_offload_seconds, 0.06 * best.simulation.step_seconds);
  job.spec.mutable_layout()->set_schedule("1f1b");
  const auto pinned = SearchLayouts(job.spec, job.model, job.budget);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_GT(pinned->evaluated.front().simulation.step_seconds, 1.1 * best.simulation.step_seconds);
}

// Sharded weights over slow links: gathered once a step and direction, not for each micro-batch.
TEST(SearchTest, ShardedWeightsOverSlowLinksAreGatheredForRuns) {
  WhatIf job = PaperJob("llama-3.2-1b", "rtx4090x1:8", 1024, 64);
  job.spec.clear_resources();
  job.spec.mutable_layout()->set_zero(3);
  job.spec.mutable_layout()->set_dp(8);
  job.spec.mutable_layout()->set_micro_batch(1);
  const auto searched = SearchLayouts(job.spec, job.model, job.budget);
  ASSERT_TRUE(searched.ok()) << searched.status();
  const Evaluated& best = searched->evaluated.front();
  EXPECT_EQ(best.layout.schedule(), "breadth_first") << LayoutText(best.layout);
  job.spec.mutable_layout()->set_schedule("1f1b");
  const auto pinned = SearchLayouts(job.spec, job.model, job.budget);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_GT(pinned->evaluated.front().simulation.step_seconds, 2 * best.simulation.step_seconds);
}

// Fast links hide all that, and runs hold the activations of all micro-batches.
TEST(SearchTest, WhatFastLinksHideNeedsNoRuns) {
  const WhatIf job = PaperJob("llama-2-7b", "h100x8:1", 4096, 256);
  const auto searched = SearchLayouts(job.spec, job.model, job.budget);
  ASSERT_TRUE(searched.ok()) << searched.status();
  const Evaluated& best = searched->evaluated.front();
  EXPECT_EQ(best.layout.schedule(), "1f1b") << LayoutText(best.layout);
}

TEST(SearchTest, TiersAreUsedWhereNothingFitsWithoutThem) {
  const WhatIf job = PaperJob("llama-3.1-8b", "rtx4090x1:1", 2048, 8);
  const auto searched = SearchLayouts(job.spec, job.model, job.budget);
  ASSERT_TRUE(searched.ok()) << searched.status();
  const Evaluated& best = searched->evaluated.front();
  EXPECT_TRUE(best.fits) << LayoutText(best.layout);
  EXPECT_TRUE(IsOffloaded(best.layout));
}

// Of a Llama with two layers, on a CPU whose device tier has so many MiB for arenas.
absl::StatusOr<Searched> SearchedLlama(int hidden, int intermediate, int64_t device_mib,
                                       const std::function<void(v1::JobSpec*)>& change) {
  const std::string config = absl::StrFormat(
      R"({"model_type": "llama", "vocab_size": 512, "hidden_size": %d, "num_hidden_layers": 2,
          "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": %d,
          "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
          "hidden_act": "silu", "tie_word_embeddings": false})",
      hidden, intermediate);
  v1::JobSpec spec = OpenSpec(config, 64, 1);
  change(&spec);
  const auto model = ReadModel(spec);
  if (!model.ok()) return model.status();
  return SearchLayouts(spec, *model,
                       {.threads_per_rank = 2,
                        .device_memory_bytes = kCpuExternalBytes + (device_mib << 20),
                        .profile = CpuProfile(2)});
}

// One layer's matrices are larger than the device: the planner tiles them.
TEST(SearchTest, MatricesAreTiledWhereALayerDoesNotFit) {
  const auto searched = SearchedLlama(2048, 16384, 480, [](v1::JobSpec* spec) {
    spec->mutable_resources()->set_host_memory(int64_t{16} << 30);
  });
  ASSERT_TRUE(searched.ok()) << searched.status();
  const Evaluated& best = searched->evaluated.front();
  EXPECT_TRUE(best.fits) << best.device_bytes << " bytes: " << LayoutText(best.layout);
  EXPECT_GT(best.layout.tile_bytes(), 0);
  // Never is never.
  const auto whole = SearchedLlama(2048, 16384, 480, [](v1::JobSpec* spec) {
    spec->mutable_resources()->set_host_memory(int64_t{16} << 30);
    spec->mutable_layout()->set_tile_bytes(0);
  });
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_FALSE(whole->evaluated.front().fits);
}

// Matrices of 16 MiB, of which three do not fit at once: smaller tiles than of large models.
TEST(SearchTest, MatricesOfSmallModelsAreTiledTooWhereALayerDoesNotFit) {
  const auto searched = SearchedLlama(1024, 4096, 36, [](v1::JobSpec* spec) {
    spec->mutable_resources()->set_host_memory(int64_t{512} << 20);
    spec->mutable_resources()->mutable_nvme()->add_paths("/nvme");
  });
  ASSERT_TRUE(searched.ok()) << searched.status();
  const Evaluated& best = searched->evaluated.front();
  EXPECT_TRUE(best.fits) << best.device_bytes << " bytes: " << LayoutText(best.layout);
  EXPECT_GT(best.layout.tile_bytes(), 0);
  EXPECT_LT(best.layout.tile_bytes(), int64_t{16} << 20);
}

// ---- closed forms against the simulator

std::vector<double> RanksOf(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (size_t i = 0; i < order.size(); ++i) ranks[order[i]] = static_cast<double>(i);
  return ranks;
}

// Spearman's rank correlation.
double Correlation(const std::vector<double>& a, const std::vector<double>& b) {
  const std::vector<double> ra = RanksOf(a), rb = RanksOf(b);
  double sum = 0;
  for (size_t i = 0; i < ra.size(); ++i) sum += (ra[i] - rb[i]) * (ra[i] - rb[i]);
  const auto n = static_cast<double>(ra.size());
  return 1 - 6 * sum / (n * (n * n - 1));
}

TEST(SearchTest, ClosedFormsOrderLayoutsAsTheSimulatorDoes) {
  const WhatIf job = PaperJob("llama-2-7b", "a100x8:1", 4096, 64);
  const auto proposals = Propose(job.spec, job.model, job.budget, Search::kAll);
  ASSERT_TRUE(proposals.ok()) << proposals.status();
  std::vector<double> estimated, simulated;
  for (size_t i = 0; i < proposals->best.size() && estimated.size() < 16; i += 3) {
    const Proposal& one = proposals->best[i];
    if (one.to_fit) continue;
    auto exact = CompileLayout(job.spec, job.model, job.budget, one.layout);
    if (!exact.ok() || !SimulateStep(job.budget.profile, &*exact).ok()) continue;
    estimated.push_back(one.seconds);
    simulated.push_back(exact->simulation.step_seconds);
  }
  ASSERT_GE(estimated.size(), 10u);
  EXPECT_GT(Correlation(estimated, simulated), 0.7);  // 0.714 seen
  // What the closed form alone would choose costs little.
  const double best = *std::min_element(simulated.begin(), simulated.end());
  EXPECT_LT(simulated.front(), 1.05 * best);
}

// ---- break-even

// What copies take from the cores that compute cannot be hidden.
TEST(OffloadReportTest, SharedCoresNeedMoreTokensToHideAnOffload) {
  v1::JobSpec spec = OpenSpec(std::string(FindPreset("gpt2")->config_json), 128, 4);
  spec.mutable_resources()->set_host_memory(int64_t{8} << 30);
  for (v1::TierShares* shares : {spec.mutable_layout()->mutable_offload()->mutable_parameter(),
                                 spec.mutable_layout()->mutable_offload()->mutable_optimizer()}) {
    shares->set_host(1);
  }
  const auto model = ReadModel(spec);
  ASSERT_TRUE(model.ok());
  const auto tokens = [&](bool shared) {
    Budget budget = {.threads_per_rank = 2, .profile = CpuProfile(2)};
    budget.profile.set_shared_cores(shared);
    const auto searched = SearchLayouts(spec, *model, budget, {.first_fit = true});
    EXPECT_TRUE(searched.ok()) << searched.status();
    return BreakEvenTokens(budget.profile, searched->evaluated.front());
  };
  EXPECT_GT(tokens(true), tokens(false));
}

}  // namespace
}  // namespace terrace
