// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/hardware/profiles.h"
#include "coordinator/layout/rules.h"
#include "coordinator/model/presets.h"
#include "coordinator/planner/degrees.h"
#include "coordinator/planner/estimate.h"
#include "coordinator/planner/space.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

v1::JobSpec Spec(int64_t global_batch) {
  v1::JobSpec spec = TinySpec();
  spec.mutable_train()->set_global_batch(global_batch);
  spec.mutable_train()->set_precision("fp32");
  spec.mutable_layout()->set_zero(-1);
  spec.mutable_layout()->set_sequence_parallel(-1);
  spec.mutable_layout()->set_persistent_parameters(-1);
  return spec;
}

absl::StatusOr<std::vector<v1::Layout>> CandidatesOf(const v1::JobSpec& spec, uint32_t ranks = 1) {
  return Candidates(spec, TinyModel("llama"),
                    {.ranks = ranks, .threads_per_rank = 2, .profile = CpuProfile(2)});
}

std::vector<uint32_t> MicroBatches(const std::vector<v1::Layout>& layouts) {
  std::vector<uint32_t> sizes;
  for (const v1::Layout& layout : layouts) sizes.push_back(layout.micro_batch());
  return sizes;
}

std::string Refusal(const v1::JobSpec& spec, uint32_t ranks = 1) {
  const auto layouts = CandidatesOf(spec, ranks);
  EXPECT_EQ(layouts.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(layouts.status().message());
}

// What no program may be long enough for is not proposed: of two layers 32,768 micro-batches are
// the most.
TEST(PlannerTest, MicroBatchesThatMakeTooLongAStepAreNoCandidates) {
  v1::JobSpec spec = Spec(1 << 17);
  spec.mutable_layout()->set_schedule("gpipe");  // others loop
  const auto layouts = CandidatesOf(spec);
  ASSERT_TRUE(layouts.ok()) << layouts.status();
  const int64_t layers = TinyModel("llama").config.layers;
  for (const v1::Layout& layout : *layouts) {
    EXPECT_LE(layout.micro_batches() * layers, 65'536);
  }
  EXPECT_GT(layouts->size(), 5u);
  spec.mutable_layout()->set_micro_batch(1);
  EXPECT_THAT(Refusal(spec), HasSubstr("layer passes in one step of a stage, must be at most"));
}

TEST(PlannerTest, EveryDivisorOfARanksBatchIsACandidate) {
  const auto layouts = CandidatesOf(Spec(24), 2);
  ASSERT_TRUE(layouts.ok()) << layouts.status();
  EXPECT_THAT(MicroBatches(*layouts), UnorderedElementsAre(1, 2, 3, 4, 6, 12));
  for (const v1::Layout& layout : *layouts) {
    EXPECT_EQ(layout.micro_batch() * layout.micro_batches() * layout.data_parallel(), 24u);
    EXPECT_EQ(layout.ranks(), 2u);
    EXPECT_EQ(layout.threads_per_rank(), 2u);
    EXPECT_GT(layout.bucket_bytes(), 0);
    EXPECT_EQ(layout.precision(), "fp32");
  }
}

TEST(PlannerTest, TheFastestComesFirst) {
  const auto layouts = CandidatesOf(Spec(24));
  ASSERT_TRUE(layouts.ok());
  EXPECT_EQ(layouts->front().micro_batch(), 24u);  // the weights are read once
  EXPECT_EQ(layouts->back().micro_batch(), 1u);
}

TEST(PlannerTest, PinnedKeysAreRespected) {
  v1::JobSpec spec = Spec(24);
  spec.mutable_layout()->set_micro_batch(3);
  spec.mutable_layout()->set_bucket_bytes(12345);
  spec.mutable_layout()->set_dp(2);
  const auto layouts = CandidatesOf(spec, 2);
  ASSERT_TRUE(layouts.ok()) << layouts.status();
  EXPECT_THAT(MicroBatches(*layouts), UnorderedElementsAre(3));
  EXPECT_EQ(layouts->front().bucket_bytes(), 12345);
}

TEST(PlannerTest, ABatchThatRanksDoNotDivideIsRefusedWithTheNearest) {
  EXPECT_THAT(Refusal(Spec(10), 4),
              AllOf(HasSubstr("train.global_batch: got 10"), HasSubstr("try 8 or 12")));
  EXPECT_THAT(Refusal(Spec(3), 4), HasSubstr("try 4"));
}

TEST(PlannerTest, AMicroBatchThatDoesNotDivideIsRefusedWithThoseThatDo) {
  v1::JobSpec spec = Spec(12);
  spec.mutable_layout()->set_micro_batch(5);
  EXPECT_THAT(Refusal(spec),
              AllOf(HasSubstr("layout.micro_batch: got 5"), HasSubstr("1, 2, 3, 4, 6, 12")));
}

TEST(PlannerTest, MoreRanksThanDevicesAreRefusedWithTheResourcesThatWouldDo) {
  v1::JobSpec spec = Spec(8);
  spec.mutable_layout()->set_dp(2);
  spec.mutable_layout()->set_tp(2);
  EXPECT_THAT(Refusal(spec, 2),
              AllOf(HasSubstr("dp 2 x tp 2 = 4 ranks, must be at most the 2"),
                    HasSubstr("1 node x 2 devices"), HasSubstr("resources.devices_per_node 4")));
  spec.mutable_layout()->set_pp(32);  // no node has so many
  EXPECT_THAT(Refusal(spec, 64), HasSubstr("resources.nodes 2"));
}

// The numbers that are advised give exactly the ranks that are pinned; none of them is there
// already.
TEST(PlannerTest, ResourcesOfSeveralNodesAreAdvisedSoThatTheyGiveThePinnedRanks) {
  const auto refusal = [](uint32_t ranks, uint32_t nodes, uint32_t pp) {
    v1::JobSpec spec = Spec(8);
    spec.mutable_layout()->set_pp(pp);
    const auto layouts = DegreesFor(spec.layout(), {.nodes = nodes, .ranks = ranks}, Search::kAll);
    return std::string(layouts.status().message());
  };
  EXPECT_THAT(refusal(4, 2, 3),
              HasSubstr("try resources.nodes 1 and resources.devices_per_node 3"));
  EXPECT_THAT(refusal(4, 2, 6), HasSubstr("try resources.devices_per_node 3, or"));
  EXPECT_THAT(refusal(6, 2, 9), HasSubstr("try resources.nodes 3, or"));
  EXPECT_THAT(refusal(48, 2, 75),
              HasSubstr("try resources.nodes 3 and resources.devices_per_node 25"));
}

TEST(PlannerTest, RanksThatDoNotDivideTheDevicesAreRefused) {
  v1::JobSpec spec = Spec(8);
  spec.mutable_layout()->set_pp(3);
  EXPECT_THAT(Refusal(spec, 4), HasSubstr("pp 3 = 3 ranks, must divide the 4"));
  spec.mutable_layout()->set_pp(2);
  spec.mutable_layout()->set_dp(1);
  spec.mutable_layout()->set_tp(1);
  spec.mutable_layout()->set_cp(1);
  EXPECT_THAT(Refusal(spec, 4), AllOf(HasSubstr("must be the 4"), HasSubstr("leave layout.dp out"),
                                      HasSubstr("resources.devices_per_node 2")));
}

TEST(PlannerTest, DimensionsThatDoNotDivideAreRefusedWithTheNearest) {
  const auto refusal = [](uint32_t ranks, void (*pin)(v1::LayoutSpec*)) {
    v1::JobSpec spec = Spec(24);
    pin(spec.mutable_layout());
    return Refusal(spec, ranks);
  };
  EXPECT_THAT(refusal(3, [](v1::LayoutSpec* l) { l->set_tp(3); }),
              AllOf(HasSubstr("layout.tp: got 3"), HasSubstr("try 2 or 4")));
  EXPECT_THAT(refusal(4, [](v1::LayoutSpec* l) { l->set_pp(4); }),
              AllOf(HasSubstr("layout.pp: got 4"), HasSubstr("try 2")));
  EXPECT_THAT(refusal(5, [](v1::LayoutSpec* l) { l->set_cp(5); }),
              AllOf(HasSubstr("layout.cp: got 5"), HasSubstr("data.sequence_length 12")));
  EXPECT_THAT(refusal(2,
                      [](v1::LayoutSpec* l) {
                        l->set_pp(2);
                        l->add_stage_layers(2);
                        l->add_stage_layers(1);
                      }),
              HasSubstr("layout.stage_layers: got [2, 1]"));
}

TEST(PlannerTest, WhatIsLeftOfTheRanksIsDataParallel) {
  v1::JobSpec spec = Spec(24);
  spec.mutable_layout()->set_tp(2);
  spec.mutable_layout()->set_pp(2);
  const auto layouts = CandidatesOf(spec, 8);
  ASSERT_TRUE(layouts.ok()) << layouts.status();
  for (const v1::Layout& layout : *layouts) {
    EXPECT_EQ(layout.data_parallel(), 2u);
    EXPECT_EQ(layout.schedule(), "1f1b");
    EXPECT_TRUE(layout.sequence_parallel());
    EXPECT_EQ(layout.zero_stage(), 0u);
    EXPECT_EQ(layout.recompute(), "none");
  }
}

TEST(PlannerTest, WhatIsNotPinnedTakesUpTheRanksThatDpLeaves) {
  v1::JobSpec spec = Spec(2);
  spec.mutable_layout()->set_dp(2);
  const auto layouts = CandidatesOf(spec, 8);
  ASSERT_TRUE(layouts.ok()) << layouts.status();
  for (const v1::Layout& layout : *layouts) {
    EXPECT_EQ(layout.tensor_parallel() * layout.pipeline_parallel() * layout.context_parallel(),
              4u);
  }
}

TEST(PlannerTest, BreadthFirstHasAChunkForEachLayerOfAStage) {
  v1::JobSpec spec = Spec(8);
  const auto layers = static_cast<uint32_t>(TinyModel("llama").config.layers);
  v1::LayoutSpec& pinned = *spec.mutable_layout();
  pinned.set_schedule("breadth_first");
  for (const uint32_t pp : {1, 2}) {
    pinned.set_pp(pp);
    const auto layouts = CandidatesOf(spec, pp);
    ASSERT_TRUE(layouts.ok()) << layouts.status();
    EXPECT_EQ(layouts->front().interleave(), layers / pp);
  }
  pinned.set_interleave(1);
  EXPECT_EQ(CandidatesOf(spec, 2).value().front().interleave(), 1u);
}

// Runs of the space of a spec on so many ranks: "pp x interleave, zero, micro-batches".
std::set<std::string> RunsIn(const v1::JobSpec& spec, uint32_t ranks, Search search) {
  std::set<std::string> runs;
  const Budget budget = {.ranks = ranks, .threads_per_rank = 2, .profile = CpuProfile(2)};
  const auto found = [&](const v1::Layout& layout) {
    if (layout.schedule() == "breadth_first") {
      runs.insert(absl::StrCat(layout.pipeline_parallel(), " x ", layout.interleave(), ", zero ",
                               layout.zero_stage(), ", ", layout.micro_batches()));
    }
    return true;
  };
  const Model model = TinyModel("llama", {.layers = 16});
  EXPECT_TRUE(ForEachLayout(spec, model, budget, search, found).ok());
  return runs;
}

// What a run prefetches, sums or sends once for several micro-batches is what it is for.
TEST(PlannerTest, BreadthFirstIsProposedWhereRunsShareSomething) {
  v1::JobSpec spec = Spec(6);
  spec.mutable_layout()->set_tp(1);
  spec.mutable_layout()->set_cp(1);
  EXPECT_EQ(RunsIn(spec, 1, Search::kPlain), std::set<std::string>());
  // Weights may rest elsewhere; and while the loss is computed no other gradients are there.
  const std::set<std::string> one = {"1 x 16, zero 0, 2", "1 x 16, zero 0, 3", "1 x 16, zero 0, 6"};
  EXPECT_EQ(RunsIn(spec, 1, Search::kAll), one);
  EXPECT_EQ(RunsIn(spec, 1, Search::kTiers), one);
  v1::JobSpec away = spec;
  v1::Offload* offload = away.mutable_layout()->mutable_offload();
  offload->mutable_parameter()->set_host(1);
  offload->mutable_optimizer()->set_host(1);
  EXPECT_EQ(RunsIn(away, 1, Search::kAll), one);
  // Gradients are summed with every ZeRO stage.
  spec.mutable_layout()->set_dp(2);
  EXPECT_EQ(RunsIn(spec, 2, Search::kAll),
            (std::set<std::string>{"1 x 16, zero 0, 3", "1 x 16, zero 1, 3", "1 x 16, zero 2, 3",
                                   "1 x 16, zero 3, 3"}));
  // Of stages alone, interleaved is as fast and holds less where micro-batches fill its rounds.
  spec.mutable_layout()->set_dp(1);
  spec.mutable_layout()->set_pp(4);
  EXPECT_EQ(RunsIn(spec, 4, Search::kAll),
            (std::set<std::string>{"4 x 2, zero 0, 2", "4 x 2, zero 0, 3", "4 x 2, zero 0, 6",
                                   "4 x 4, zero 0, 2", "4 x 4, zero 0, 3", "4 x 4, zero 0, 6"}));
  spec.mutable_layout()->set_pp(2);
  EXPECT_EQ(RunsIn(spec, 2, Search::kAll),
            (std::set<std::string>{"2 x 2, zero 0, 3", "2 x 4, zero 0, 3", "2 x 8, zero 0, 3"}));
  // Who pins another schedule gets that.
  spec.mutable_layout()->set_schedule("interleaved");
  EXPECT_EQ(RunsIn(spec, 2, Search::kTiers), std::set<std::string>());
}

TEST(PlannerTest, EveryPinnedKeyReachesTheLayout) {
  v1::JobSpec spec = Spec(16);
  spec.mutable_train()->set_precision("bf16");
  v1::LayoutSpec& pinned = *spec.mutable_layout();
  pinned.set_dp(4);
  pinned.set_tp(2);
  pinned.set_pp(2);
  pinned.set_cp(2);
  pinned.set_zero(3);
  pinned.set_shard_size(2);
  pinned.set_recompute("every");
  pinned.set_recompute_every(2);
  pinned.set_schedule("gpipe");
  pinned.set_context_type("ring");
  pinned.set_sequence_parallel(0);
  pinned.set_communication_dtype("bf16");
  pinned.set_persistent_parameters(77);
  pinned.set_micro_batch(2);
  const auto layouts = CandidatesOf(spec, 32);
  ASSERT_TRUE(layouts.ok()) << layouts.status();
  ASSERT_EQ(layouts->size(), 1u);
  const v1::Layout& layout = layouts->front();
  EXPECT_EQ(layout.data_parallel(), 4u);
  EXPECT_EQ(layout.zero_stage(), 3u);
  EXPECT_EQ(layout.shard_size(), 2u);
  EXPECT_EQ(layout.recompute(), "every");
  EXPECT_EQ(layout.recompute_every(), 2u);
  EXPECT_EQ(layout.schedule(), "gpipe");
  EXPECT_FALSE(layout.sequence_parallel());
  EXPECT_EQ(layout.reduce_format(), "bf16");
  EXPECT_EQ(layout.persistent_parameters(), 77);
  EXPECT_EQ(layout.micro_batches(), 2u);
}

// Of 4 nodes of 4 ranks, two of which share the products of a layer.
TEST(PlannerTest, CodesOfGradientsAreExchangedInsideNodesFirst) {
  v1::JobSpec spec = Spec(64);
  spec.mutable_layout()->set_tp(2);
  spec.mutable_layout()->set_pp(1);
  spec.mutable_layout()->set_cp(1);
  spec.mutable_layout()->set_zero(2);
  spec.mutable_layout()->set_micro_batch(1);
  Budget budget = {.ranks = 16, .threads_per_rank = 1, .profile = CpuProfile(1)};
  budget.nodes = 4;
  const auto block = [&](const char* reduce, uint32_t pinned, uint32_t nodes) {
    spec.mutable_formats()->set_reduce(reduce);
    spec.mutable_layout()->set_reduce_block(pinned);
    budget.nodes = nodes;
    uint32_t found = 99;
    const absl::Status status =
        ForEachLayout(spec, TinyModel("llama"), budget, Search::kPlain, [&](const v1::Layout& l) {
          found = l.reduce_block();
          return true;
        });
    EXPECT_EQ(status, absl::OkStatus());
    return found;
  };
  EXPECT_EQ(block("int4", 0, 4), 2u);
  EXPECT_EQ(block("int4", 1, 4), 1u) << "all at once";
  EXPECT_EQ(block("int4", 4, 4), 4u);
  EXPECT_EQ(block("int4", 0, 1), 0u) << "one node";
  EXPECT_EQ(block("int4", 0, 8), 0u) << "no two ranks of a node differ in their data";
  EXPECT_EQ(block("f32", 0, 4), 0u);
}

TEST(PlannerTest, SeveralChunksAStageMeanTheInterleavedSchedule) {
  v1::JobSpec spec = Spec(8);
  spec.mutable_layout()->set_pp(2);
  spec.mutable_layout()->set_interleave(2);
  EXPECT_THAT(Refusal(spec, 2), HasSubstr("4 model chunks"));  // of a model of two layers
  spec.mutable_layout()->set_interleave(0);
  spec.mutable_layout()->set_schedule("zb-h1");
  const auto layouts = CandidatesOf(spec, 2);
  ASSERT_TRUE(layouts.ok()) << layouts.status();
  EXPECT_EQ(layouts->front().interleave(), 1u);
}

TEST(PlannerTest, ZeroOnOneRankIsAcceptedAndMeansNone) {
  v1::JobSpec spec = Spec(8);
  spec.mutable_layout()->set_zero(3);
  const auto layouts = CandidatesOf(spec);
  ASSERT_TRUE(layouts.ok()) << layouts.status();
  EXPECT_EQ(layouts->front().zero_stage(), 0u);
}

TEST(PlannerTest, ASequenceThatARingCannotSplitIsSplitByHeads) {
  v1::JobSpec spec = Spec(8);
  spec.mutable_data()->set_sequence_length(10);
  spec.mutable_layout()->set_cp(2);
  const auto ulysses = CandidatesOf(spec, 2);
  ASSERT_TRUE(ulysses.ok()) << ulysses.status();
  EXPECT_EQ(ulysses->front().context_type(), "ulysses");
  spec.mutable_data()->set_sequence_length(12);
  EXPECT_EQ(CandidatesOf(spec, 2)->front().context_type(), "ring");
}

// ---- the wider search ---------------------------------------------------------------------------

// `taken`: of a device's memory, all of it; 0: there is no limit.
std::vector<v1::Layout> AllOfThem(const v1::JobSpec& spec, uint32_t ranks, uint32_t nodes = 1,
                                  int64_t taken = 0) {
  const auto layouts = Candidates(spec, TinyModel("llama"),
                                  {.nodes = nodes,
                                   .ranks = ranks,
                                   .threads_per_rank = 2,
                                   .device_memory_bytes = taken,
                                   .external_bytes = taken,
                                   .profile = CpuProfile(2)},
                                  Search::kAll);
  EXPECT_TRUE(layouts.ok()) << layouts.status();
  return layouts.ok() ? *layouts : std::vector<v1::Layout>();
}

TEST(PlannerTest, TheWiderSearchTriesEveryWayToSaveMemory) {
  std::set<uint32_t> zeros, tps, pps, cps;
  std::set<std::string> recomputes;
  for (const v1::Layout& layout : AllOfThem(Spec(2), 4)) {
    EXPECT_TRUE(CheckLayout(layout, TinyModel("llama"), Spec(2)).ok());
    zeros.insert(layout.zero_stage());
    tps.insert(layout.tensor_parallel());
    pps.insert(layout.pipeline_parallel());
    cps.insert(layout.context_parallel());
    recomputes.insert(layout.recompute());
  }
  EXPECT_GE(zeros.size(), 3u);
  EXPECT_GE(tps.size(), 2u);
  EXPECT_GE(pps.size(), 2u);
  EXPECT_GE(cps.size(), 1u);
  EXPECT_GE(recomputes.size(), 2u);
}

TEST(PlannerTest, TheWiderSearchKeepsToPinnedKeys) {
  v1::JobSpec spec = Spec(8);
  spec.mutable_layout()->set_zero(1);
  spec.mutable_layout()->set_recompute("none");
  for (const v1::Layout& layout : AllOfThem(spec, 4)) {
    EXPECT_EQ(layout.recompute(), "none");
    EXPECT_EQ(layout.zero_stage(), 1u) << "of ranks that share nothing";
  }
}

TEST(PlannerTest, APinnedZeroStageWithoutRanksThatShareMeansNone) {
  v1::JobSpec spec = Spec(8);
  spec.mutable_layout()->set_zero(1);
  spec.mutable_layout()->set_dp(1);
  spec.mutable_layout()->set_cp(1);
  const std::vector<v1::Layout> layouts = AllOfThem(spec, 4);
  EXPECT_FALSE(layouts.empty());
  for (const v1::Layout& layout : layouts) EXPECT_EQ(layout.zero_stage(), 0u);
}

TEST(PlannerTest, TensorParallelRanksAreChosenInsideANode) {
  for (const v1::Layout& layout : AllOfThem(Spec(8), 4, /*nodes=*/2)) {
    EXPECT_LE(layout.tensor_parallel(), 2u);
  }
}

TEST(PlannerTest, TheSmallestLayoutIsAlwaysProposed) {
  const v1::JobSpec spec = Spec(8);
  const Estimator estimator(spec, TinyModel("llama"));
  const auto smallest = [&](const std::vector<v1::Layout>& layouts) {
    int64_t bytes = estimator.DeviceBytes(layouts.front());
    for (const v1::Layout& layout : layouts) bytes = std::min(bytes, estimator.DeviceBytes(layout));
    return bytes;
  };
  const std::vector<v1::Layout> infeasible = AllOfThem(spec, 4, 1, /*taken=*/1);
  EXPECT_EQ(smallest(infeasible), smallest(AllOfThem(spec, 4)));
  EXPECT_LE(infeasible.size(), 8u) << "the others are not worth compiling";
}

TEST(PlannerTest, SixteenThousandRanksAreSearchedInSeconds) {
  const auto config = ParseModelConfig(FindPreset("llama-3.1-405b")->config_json, 8192);
  ASSERT_TRUE(config.ok()) << config.status();
  v1::JobSpec spec = Spec(2048);
  spec.mutable_data()->set_sequence_length(8192);
  spec.mutable_train()->set_precision("bf16");
  const auto layouts = Candidates(spec, BuildModel(*config),
                                  {.nodes = 2048,
                                   .ranks = 16384,
                                   .threads_per_rank = 1,
                                   .device_memory_bytes = int64_t{80} << 30,
                                   .profile = CpuProfile(2)},
                                  Search::kAll);
  ASSERT_TRUE(layouts.ok()) << layouts.status();
  EXPECT_LE(layouts->size(), 65u);
}

}  // namespace
}  // namespace terrace
