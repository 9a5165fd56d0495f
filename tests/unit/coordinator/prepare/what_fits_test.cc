// What is said of jobs that do not fit: which changes are tried, in which order, and that trying
// them ends however large the model and the cluster are.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/what_fits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/hardware/cluster.h"
#include "coordinator/hardware/profiles.h"
#include "coordinator/layout/rules.h"
#include "coordinator/model/presets.h"
#include "coordinator/planner/estimate_length.h"
#include "coordinator/prepare/evaluate.h"
#include "coordinator/prepare/layout_text.h"
#include "coordinator/prepare/prepare.h"
#include "coordinator/prepare/search.h"
#include "coordinator/prepare/variations.h"
#include "tests/unit/coordinator/prepare/open_spec.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

v1::JobSpec PresetSpec(std::string_view preset, int64_t sequence, int64_t batch) {
  return OpenSpec(std::string(FindPreset(preset)->config_json), sequence, batch);
}

struct Tried {
  absl::StatusOr<Prepared> prepared;
  std::vector<std::string> told;
};

Tried Try(v1::JobSpec spec, std::string_view cluster_name) {
  spec.mutable_resources()->set_nodes_min(1);
  spec.mutable_resources()->set_nodes_max(1);
  spec.mutable_resources()->set_devices_per_node(1);
  const auto cluster = ParseCluster(cluster_name);
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_TRUE(ApplyCluster(*cluster, &spec).ok());
  Tried tried;
  tried.prepared = PrepareAnyway(spec, WhatIfBudget(spec, *cluster),
                                 [&](const std::string& words) { tried.told.push_back(words); });
  EXPECT_TRUE(tried.prepared.ok()) << tried.prepared.status();
  return tried;
}

// ---- variations

TEST(VariationsTest, SequencesAreHalvedDownToSixteenTokens) {
  std::vector<int64_t> lengths;
  for (const Variation& one : Shorter({.spec = PresetSpec("gpt2", 100, 1), .changes = {}}))
    lengths.push_back(one.spec.data().sequence_length());
  EXPECT_THAT(lengths, ElementsAre(100, 50, 25));
}

TEST(VariationsTest, ChangesAreNamedInTheOrderInWhichTheyWereMade) {
  const Variation bf16 = WithBf16({.spec = PresetSpec("gpt2", 64, 1), .changes = {}});
  EXPECT_THAT(Shorter(bf16).back().changes,
              ElementsAre("train.precision bf16", "data.sequence_length 16"));
}

TEST(VariationsTest, AnOpenLayoutHasNothingToRelease) {
  EXPECT_EQ(WithLayoutReleased({.spec = PresetSpec("gpt2", 64, 1), .changes = {}}).size(), 1u);
  v1::JobSpec pinned = PresetSpec("gpt2", 64, 1);
  pinned.mutable_layout()->set_micro_batch(1);
  pinned.mutable_layout()->set_tp(1);
  const auto released = WithLayoutReleased({.spec = pinned, .changes = {}});
  EXPECT_EQ(released.front().spec.layout().micro_batch(), 1u);
  EXPECT_EQ(released.back().spec.layout().tp(), 0u);
}

TEST(VariationsTest, PagesAreAllowedFirst) {
  v1::JobSpec spec = PresetSpec("gpt2", 64, 1);
  spec.mutable_layout()->set_packing("contiguous");
  const auto released = WithLayoutReleased({.spec = spec, .changes = {}});
  ASSERT_EQ(released.size(), 2u);
  EXPECT_EQ(released[1].spec.layout().packing(), "auto");
  EXPECT_THAT(released[1].changes, ElementsAre("layout.packing auto"));
  for (const char* packing : {"auto", "pages"}) {
    spec.mutable_layout()->set_packing(packing);
    EXPECT_EQ(WithLayoutReleased({.spec = spec, .changes = {}}).size(), 1u);
  }
}

TEST(VariationsTest, AnOffloadThatTheSpecHasIsLeftAlone) {
  v1::JobSpec spec = PresetSpec("gpt2", 64, 1);
  EXPECT_EQ(WithOffload({.spec = spec, .changes = {}}).size(), 4u);
  spec.mutable_layout()->mutable_offload()->mutable_optimizer()->set_host(1);
  EXPECT_THAT(WithOffload({.spec = spec, .changes = {}}), IsEmpty());
}

// ---- what is tried

// Not one change is compiled that closed forms call infeasible.
TEST(WhatFitsTest, WhereNothingHelpsNothingIsTried) {
  v1::JobSpec spec = PresetSpec("llama-3.1-70b", 8192, 64);
  spec.mutable_resources()->set_device_memory(int64_t{1} << 30);
  spec.mutable_resources()->set_host_memory(int64_t{1} << 30);
  const Tried tried = Try(spec, "h100x8:1");
  EXPECT_THAT(tried.told, ElementsAre("changes by closed form"));
  EXPECT_EQ(tried.prepared->refusal.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(tried.prepared->refusal.message()),
              AllOf(HasSubstr("no layout, precision or sequence_length fits"),
                    HasSubstr("of 1.0 GiB"), HasSubstr("the most is held at ")));
}

// Sixty-four stages that are full are compiled for no other reason than to say that they are too
// large: one of few stages says it, and that more of them would need less.
int64_t DeviceBytes(const v1::Plan& plan) {
  int64_t most = 0;
  for (const v1::StageMemory& memory : plan.memory()) {
    if (memory.tier() != v1::DEVICE) continue;
    most = std::max(most, memory.arena_bytes() + memory.external_bytes());
  }
  return most;
}

TEST(WhatFitsTest, OnThousandsOfDevicesALayoutThatIsSoonCompiledShowsThatNothingFits) {
  v1::JobSpec spec = PresetSpec("llama-3.1-405b", 8192, 2048);
  spec.mutable_resources()->set_device_memory(int64_t{2} << 30);
  const Tried tried = Try(spec, "h100x8:2048");
  const v1::Layout& layout = tried.prepared->plan.layout();
  EXPECT_LE(LayerPasses(layout, 126), kShownLayerPasses);
  EXPECT_THAT(std::string(tried.prepared->refusal.message()),
              HasSubstr("no layout, precision or sequence_length fits"));
  // The embedding's gradient alone is 7.8 GiB, so that this is near the least there is.
  EXPECT_LT(DeviceBytes(tried.prepared->plan), int64_t{9} << 30);
}

// Without its offload nothing fits, however short; with it all that is in the way is the
// micro-batch. host_memory is not given: what is pinned to the host is not limited there.
TEST(WhatFitsTest, APinnedOffloadIsKeptWhereItIsWhatMakesOthersFit) {
  v1::JobSpec spec = PresetSpec("gpt2", 128, 64);
  spec.mutable_layout()->set_micro_batch(64);
  spec.mutable_layout()->mutable_offload()->mutable_optimizer()->set_host(1);
  const int64_t device = int64_t{1000} << 20;
  const Budget budget = {
      .threads_per_rank = 2, .device_memory_bytes = device, .profile = CpuProfile(2)};
  const auto prepared = PrepareAnyway(spec, budget);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_THAT(std::string(prepared->refusal.message()),
              HasSubstr("the cheapest change that fits: layout.micro_batch "));
}

// ---- that trying ends

// Of 96 GiB of states none fits, whatever the length; of its halves some might, for all that a
// closed form knows that is not asked.
TEST(WhatFitsTest, ClosedFormsThatCostTooMuchAreNotAskedAndThatIsSaid) {
  v1::JobSpec spec = PresetSpec("gpt2", 1024, 8);
  spec.mutable_train()->set_precision("fp32");
  const Budget budget = {
      .threads_per_rank = 2, .device_memory_bytes = int64_t{1200} << 20, .profile = CpuProfile(2)};
  const Changes all = ChangesThatFit(spec, budget, 1, {});
  ASSERT_EQ(all.found.size(), 1u);
  EXPECT_THAT(all.not_tried, IsEmpty());
  std::vector<std::string> told;
  const auto tell = [&](const std::string& words) { told.push_back(words); };
  const Changes few = ChangesThatFit(spec, budget, 1, tell, {.compared = 1});
  EXPECT_THAT(few.not_tried, Not(IsEmpty()));
  EXPECT_GE(told.size(), 2u) << "one change is always tried";
}

TEST(WhatFitsTest, ChangesThatCostTooMuchAreNotCompiledAndThatIsSaid) {
  v1::JobSpec spec = PresetSpec("gpt2", 128, 1);
  spec.mutable_train()->set_precision("fp32");
  const Budget budget = {
      .threads_per_rank = 2, .device_memory_bytes = int64_t{1300} << 20, .profile = CpuProfile(2)};
  ASSERT_EQ(ChangesThatFit(spec, budget, 1, {}).found.size(), 1u);
  const Changes none = ChangesThatFit(spec, budget, 1, {}, {.instructions = 10});
  EXPECT_THAT(none.found, IsEmpty());
  EXPECT_THAT(none.not_tried, Contains("an offload"));
  const auto model = ReadModel(spec);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto searched = SearchLayouts(spec, *model, budget);
  ASSERT_TRUE(searched.ok()) << searched.status();
  EXPECT_THAT(std::string(DoesNotFit(spec, budget, *searched, none).message()),
              AllOf(HasSubstr("none of the changes that were tried fits (not tried, for the time "
                              "that it would take: an offload"),
                    Not(HasSubstr("no layout, precision"))));
}

// What changes nothing that the spec says makes the job fit after all, and is no advice.
TEST(WhatFitsTest, AChangeThatTheSpecAllowsAnywayIsToldFromOthers) {
  v1::JobSpec spec = PresetSpec("gpt2", 128, 1);
  spec.mutable_train()->set_precision("fp32");
  const Budget budget = {
      .threads_per_rank = 2, .device_memory_bytes = int64_t{1300} << 20, .profile = CpuProfile(2)};
  const Changes asked = ChangesThatFit(spec, budget, 1, {});
  ASSERT_EQ(asked.found.size(), 1u);
  EXPECT_FALSE(asked.found[0].within_spec) << "resources offer no other tier";
  spec.mutable_resources()->set_host_memory(int64_t{8} << 30);
  const Changes offered = ChangesThatFit(spec, budget, 1, {});
  ASSERT_EQ(offered.found.size(), 1u);
  EXPECT_TRUE(offered.found[0].evaluated.layout.has_offload());
  EXPECT_TRUE(offered.found[0].within_spec);
  spec.mutable_layout()->set_zero(0);
  const Changes pinned = ChangesThatFit(spec, budget, 1, {});
  ASSERT_EQ(pinned.found.size(), 1u);
  EXPECT_FALSE(pinned.found[0].within_spec) << "what is pinned was released";
  v1::JobSpec away = PresetSpec("gpt2", 128, 1);
  away.mutable_layout()->mutable_offload()->mutable_optimizer()->set_host(1);
  away.mutable_resources()->set_host_memory(1 << 20);
  const Changes back = ChangesThatFit(
      away,
      {.threads_per_rank = 2, .device_memory_bytes = int64_t{8} << 30, .profile = CpuProfile(2)}, 1,
      {});
  ASSERT_EQ(back.found.size(), 1u);
  EXPECT_FALSE(back.found[0].within_spec) << "the states would come back to the device";
}

TEST(ProgramLengthTest, IsThatOfTheProgramsWithinAFactorOfThree) {
  v1::JobSpec spec = PresetSpec("gpt2", 128, 8);
  spec.mutable_resources()->mutable_nvme()->add_paths("/mnt/nvme");
  const auto model = ReadModel(spec);
  ASSERT_TRUE(model.ok()) << model.status();
  const Budget budget = {.threads_per_rank = 2, .profile = CpuProfile(2)};
  v1::Layout plain;
  plain.set_data_parallel(2);
  plain.set_micro_batch(1);
  plain.set_micro_batches(4);
  plain.set_bucket_bytes(int64_t{25} << 20);
  plain.set_precision("bf16");
  plain.set_threads_per_rank(2);
  std::vector<v1::Layout> layouts(5, plain);
  layouts[1].set_zero_stage(3);
  layouts[2].set_context_parallel(8);
  layouts[3].mutable_offload()->mutable_optimizer()->set_host(1);
  layouts[3].mutable_offload()->mutable_parameter()->set_host(1);
  layouts[4].mutable_offload()->mutable_optimizer()->set_nvme(1);
  layouts[4].mutable_offload()->mutable_parameter()->set_nvme(1);
  for (v1::Layout& layout : layouts) {
    layout = Completed(std::move(layout));
    SCOPED_TRACE(LayoutText(layout));
    const auto one = CompileLayout(spec, *model, budget, layout);
    ASSERT_TRUE(one.ok()) << one.status();
    const double guess = ProgramLength(EstimateModel(spec, *model), layout);
    const auto length = static_cast<double>(one->programs[0].sequences(0).instructions_size());
    EXPECT_LT(length, 3 * guess);
    EXPECT_GT(length, guess / 3);
    // What is longer than it may be is given up.
    const auto limited = [&](int64_t most) {
      return CompileLayout(spec, *model, budget, layout, most).status().code();
    };
    EXPECT_EQ(limited(static_cast<int64_t>(length / 2)), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(limited(static_cast<int64_t>(length) + 1), absl::StatusCode::kOk);
  }
}

// A little of each change is tried before much of any, so that one that fits is met while there is
// something left; what is found can be compiled whole.
TEST(WhatFitsTest, LargeModelsThatDoNotFitAreToldAChangeThatFits) {
  struct Case {
    const char* preset;
    const char* cluster;
    const char* precision;
    int64_t batch, device_gib, host_gib;
  };
  for (const Case& c : {Case{"llama-3.1-8b", "h100x1:1", "fp32", 512, 8, 16},
                        Case{"llama-3.1-70b", "h100x8:1", "bf16", 1024, 24, 64}}) {
    SCOPED_TRACE(c.preset);
    v1::JobSpec spec = PresetSpec(c.preset, 8192, c.batch);
    spec.mutable_train()->set_precision(c.precision);
    spec.mutable_resources()->set_device_memory(c.device_gib << 30);
    spec.mutable_resources()->set_host_memory(c.host_gib << 30);
    const Tried tried = Try(spec, c.cluster);
    const v1::Plan& plan = tried.prepared->plan;
    ASSERT_GT(plan.alternatives_size(), 0);
    for (const v1::Alternative& other : plan.alternatives()) {
      EXPECT_TRUE(other.fits()) << other.note();
      EXPECT_LE(other.device_bytes(), c.device_gib << 30) << other.note();
      EXPECT_LE(other.host_bytes(), c.host_gib << 30) << other.note();
    }
    EXPECT_THAT(std::string(tried.prepared->refusal.message()),
                HasSubstr("the cheapest change that fits: "));
  }
}

// What a layout costs to compile is told before it is compiled.
TEST(WhatFitsTest, ASearchThatFindsNothingCompilesNoMoreThanItMay) {
  v1::JobSpec spec = PresetSpec("llama-3.1-8b", 2048, 64);
  spec.mutable_resources()->set_device_memory(int64_t{2} << 30);
  spec.mutable_resources()->set_host_memory(int64_t{1} << 30);
  const auto cluster = ParseCluster("h100x8:1");
  ASSERT_TRUE(ApplyCluster(*cluster, &spec).ok());
  const Budget budget = WhatIfBudget(spec, *cluster);
  const auto model = ReadModel(spec);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto cost_of = [&](const SearchOptions& options, bool any) {
    SearchCost cost;
    const auto searched = SearchLayouts(spec, *model, budget, options, &cost);
    EXPECT_TRUE(searched.ok()) << searched.status();
    EXPECT_EQ(!searched->evaluated.empty(), any);
    EXPECT_TRUE(any || !searched->all_tried) << "what was spent is not what does not fit";
    EXPECT_GT(cost.compared, 100);
    return cost.instructions;
  };
  // One layout is looked at in any case, unless only what fits is asked for.
  const int64_t least = cost_of({.instructions_max = 0}, true);
  EXPECT_GT(least, 0);
  EXPECT_EQ(cost_of({.first_fit = true, .instructions_max = 0}, false), 0);
  const int64_t some = 3 * least;
  const int64_t spent = cost_of({.instructions_max = some}, true);
  EXPECT_LE(spent, some + some / 4) << "what is compiled is guessed closely";
}

TEST(WhatFitsTest, EachChangeShownWasToldAndFits) {
  v1::JobSpec spec = PresetSpec("gpt2", 128, 1);
  spec.mutable_train()->set_precision("fp32");
  const int64_t device = int64_t{1300} << 20;
  const Budget budget = {
      .threads_per_rank = 2, .device_memory_bytes = device, .profile = CpuProfile(2)};
  std::vector<std::string> told;
  const auto prepared =
      PrepareAnyway(spec, budget, [&](const std::string& words) { told.push_back(words); });
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  ASSERT_FALSE(prepared->refusal.ok());
  // The host before digits.
  ASSERT_GE(told.size(), 2u);
  EXPECT_EQ(told[0], "changes by closed form");
  EXPECT_EQ(told[1], "an offload");
  ASSERT_GT(prepared->plan.alternatives_size(), 0);
  EXPECT_THAT(prepared->plan.alternatives(0).note(), HasSubstr("layout.offload.optimizer host"));
  EXPECT_GE(told.size() - 1, static_cast<size_t>(prepared->plan.alternatives_size()));
  for (const v1::Alternative& other : prepared->plan.alternatives()) {
    EXPECT_TRUE(other.fits()) << other.note();
    EXPECT_LE(other.device_bytes(), device) << other.note();
  }
}

}  // namespace
}  // namespace terrace
