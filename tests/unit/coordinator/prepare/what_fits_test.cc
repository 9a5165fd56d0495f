// What is said of jobs that do not fit: which changes are tried, in which order, and that trying
// them ends however large the model and the cluster are.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/what_fits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "coordinator/model/presets.h"
#include "coordinator/planner/cluster.h"
#include "coordinator/planner/profiles.h"
#include "coordinator/prepare.h"
#include "coordinator/prepare/variations.h"
#include "tests/unit/coordinator/prepare/open_spec.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

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
  tried.prepared = PrepareAnyway(spec, BudgetOnPaper(spec, *cluster),
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

TEST(VariationsTest, AnOffloadThatTheSpecHasIsLeftAlone) {
  v1::JobSpec spec = PresetSpec("gpt2", 64, 1);
  EXPECT_EQ(WithOffload({.spec = spec, .changes = {}}).size(), 4u);
  spec.mutable_layout()->mutable_offload()->mutable_optimizer()->set_host(1);
  EXPECT_THAT(WithOffload({.spec = spec, .changes = {}}), IsEmpty());
}

// ---- what is tried

// Not one change is compiled that closed forms call hopeless.
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

TEST(WhatFitsTest, ARefusalSaysThatItsFiguresAreOfASampleOfALongStep) {
  v1::JobSpec spec = PresetSpec("gpt2", 128, 256);
  spec.mutable_layout()->set_micro_batch(1);
  const Budget budget = {
      .threads_per_rank = 2, .device_memory_bytes = int64_t{110} << 20, .profile = CpuProfile(2)};
  const auto prepared = PrepareAnyway(spec, budget);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_THAT(std::string(prepared->refusal.message()),
              HasSubstr(" of the step's 256 micro-batches: close, not exact"));
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
