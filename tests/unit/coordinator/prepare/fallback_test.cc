// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/fallback.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "coordinator/hardware/profiles.h"
#include "coordinator/prepare/evaluate.h"
#include "coordinator/prepare/search.h"
#include "proto/check/program_check.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr TinySizes kLong = {.hidden = 64, .sequence = 256};

// Nothing pinned; activations of 8 sequences are most of its memory.
v1::JobSpec Open() {
  v1::JobSpec spec = TinySpec();
  spec.clear_layout();
  spec.mutable_layout()->set_zero(-1);
  spec.mutable_layout()->set_sequence_parallel(-1);
  spec.mutable_model()->set_config_json(TinyConfig("gpt2", kLong));
  spec.mutable_model()->set_attention("config");
  spec.mutable_data()->set_sequence_length(kLong.sequence);
  spec.mutable_train()->set_precision("fp32");
  spec.mutable_train()->set_global_batch(16);
  spec.mutable_resources()->set_device("cpu");
  return spec;
}

Budget MakeBudget(int64_t device_memory_bytes = 0, int64_t external_bytes = 0) {
  return {.ranks = 1,
          .threads_per_rank = 1,
          .device_memory_bytes = device_memory_bytes,
          .external_bytes = external_bytes,
          .profile = CpuProfile(1)};
}

v1::Plan PlanWith(uint32_t micro_batch, v1::JobSpec spec = Open()) {
  spec.mutable_layout()->set_micro_batch(micro_batch);
  spec.mutable_layout()->set_recompute("none");
  const auto prepared = Prepare(spec, MakeBudget());
  EXPECT_TRUE(prepared.ok()) << prepared.status();
  return prepared.ok() ? prepared->plan : v1::Plan();
}

int64_t Arena(const v1::Plan& plan) { return plan.memory(0).arena_bytes(); }

std::vector<std::string> Names(const std::vector<Fallback>& fallbacks) {
  std::vector<std::string> names;
  for (const Fallback& fallback : fallbacks) names.push_back(fallback.name);
  return names;
}

// ---- fallbacks --------------------------------------------------------------------------------

TEST(LadderTest, GivesUpTheMicroBatchThenActivationsThenTheDeviceAndKeepsWhatWasGivenUp) {
  v1::JobSpec spec = Open();
  spec.mutable_resources()->set_host_memory(1 << 30);
  spec.mutable_resources()->mutable_nvme()->add_paths("/tmp");
  const v1::Layout top = PlanWith(4).layout();
  const std::vector<Fallback> fallbacks = FallbacksFrom(spec, top);
  EXPECT_THAT(Names(fallbacks), testing::ElementsAre("micro_batch", "micro_batch", "recompute",
                                                     "recompute", "host", "host", "nvme", "nvme"));
  EXPECT_EQ(fallbacks[0].layout.micro_batch(), 2u);
  for (const Fallback& fallback : fallbacks) {
    EXPECT_EQ(fallback.layout.micro_batch() * fallback.layout.micro_batches(),
              top.micro_batch() * top.micro_batches())
        << "the batch of a step stays";
  }
  const v1::Layout& bottom = fallbacks.back().layout;
  EXPECT_EQ(bottom.micro_batch(), 1u);
  EXPECT_EQ(bottom.recompute(), "block");
  EXPECT_EQ(bottom.offload().parameter().nvme(), 1);
  EXPECT_EQ(bottom.offload().optimizer().nvme(), 1);
}

// From wherever it is entered, no layout comes twice.
TEST(LadderTest, TheWayDownEnds) {
  v1::JobSpec spec = Open();
  spec.mutable_resources()->mutable_nvme()->add_paths("/tmp");
  v1::Layout layout = PlanWith(16).layout();
  std::set<std::string> seen = {layout.SerializeAsString()};
  size_t left = FallbacksFrom(spec, layout).size();
  for (std::vector<Fallback> fallbacks = FallbacksFrom(spec, layout); !fallbacks.empty();
       fallbacks = FallbacksFrom(spec, layout)) {
    EXPECT_EQ(fallbacks.size(), left--);
    layout = fallbacks.front().layout;
    EXPECT_TRUE(seen.insert(layout.SerializeAsString()).second);
  }
  EXPECT_EQ(left, 0u);
}

TEST(LadderTest, WhatIsPinnedIsNotMoved) {
  v1::JobSpec spec = Open();
  spec.mutable_layout()->set_micro_batch(4);
  spec.mutable_resources()->set_host_memory(1 << 30);
  EXPECT_THAT(Names(FallbacksFrom(spec, PlanWith(4).layout())),
              testing::ElementsAre("recompute", "recompute", "host", "host"));
  spec.mutable_layout()->set_recompute("none");
  spec.mutable_layout()->mutable_offload()->mutable_optimizer()->set_device(1);
  const std::vector<Fallback> fallbacks = FallbacksFrom(spec, PlanWith(4).layout());
  ASSERT_THAT(Names(fallbacks), testing::ElementsAre("host"));
  EXPECT_EQ(fallbacks[0].layout.offload().optimizer().host(), 0);
  EXPECT_EQ(fallbacks[0].layout.offload().parameter().host(), 1);
}

TEST(LadderTest, TiersThatAreNotOfferedAreNotTaken) {
  EXPECT_THAT(Names(FallbacksFrom(Open(), PlanWith(1).layout())),
              testing::ElementsAre("recompute", "recompute"));
}

TEST(LadderTest, GroupsOfLayersAreFollowedByBlocksOnly) {
  v1::Layout layout = PlanWith(1).layout();
  layout.set_recompute("sqrt");
  const std::vector<Fallback> fallbacks = FallbacksFrom(Open(), layout);
  ASSERT_EQ(fallbacks.size(), 1u);
  EXPECT_EQ(fallbacks[0].layout.recompute(), "block");
}

// ---- the first that fits ----------------------------------------------------------------------

TEST(LadderTest, TheLearnedFigureHasAMarginFromWhichWhatWasSeenFollows) {
  for (const int64_t seen : {kMiB, 97 * kMiB, 300 * kMiB + 12345, int64_t{7} << 33}) {
    const int64_t learned = LearnedFrom(seen);
    EXPECT_EQ(learned % kMiB, 0);
    EXPECT_GE(SeenFrom(learned), seen);
    EXPECT_LE(SeenFrom(learned), seen + kMiB);
    EXPECT_GE(learned, seen + seen / 8);
  }
}

// The device has room for the arena and the usual bytes outside, and the rank held 110 MiB there.
TEST(LadderTest, TakesTheFirstRungThatFitsTheDeviceWithWhatWasLearned) {
  const v1::Plan ran_out = PlanWith(16);
  const int64_t learned = LearnedFrom(110 * kMiB);
  const int64_t limit = Arena(PlanWith(8)) + learned;
  ASSERT_GT(Arena(ran_out) + 110 * kMiB, limit);
  const auto chosen = FindFallback(Open(), MakeBudget(limit, learned), ran_out);
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(chosen->fallback, "micro_batch");
  EXPECT_EQ(chosen->change, "layout.micro_batch 8 instead of 16");
  EXPECT_EQ(chosen->prepared.plan.layout().micro_batches(), 2u);
  EXPECT_EQ(Arena(chosen->prepared.plan) + learned, limit);
  ASSERT_EQ(chosen->prepared.programs.size(), 1u);
  EXPECT_EQ(chosen->prepared.programs[0].external_bytes(), learned) << "it may hold that now";
  EXPECT_TRUE(CheckPrograms(chosen->prepared.programs).ok());
  v1::JobSpec in_one_piece = Open();  // pages would save more than the byte
  in_one_piece.mutable_layout()->set_packing("contiguous");
  const auto tighter = FindFallback(in_one_piece, MakeBudget(limit - 1, learned), ran_out);
  ASSERT_TRUE(tighter.ok()) << tighter.status();
  EXPECT_EQ(tighter->change, "layout.micro_batch 4 instead of 16");
}

TEST(LadderTest, TheSameInGivesTheSameOut) {
  const v1::Plan ran_out = PlanWith(16);
  const int64_t learned = LearnedFrom(110 * kMiB);
  const Budget budget = MakeBudget(Arena(PlanWith(4)) + learned, learned);
  const auto first = FindFallback(Open(), budget, ran_out),
             second = FindFallback(Open(), budget, ran_out);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->prepared.plan.SerializeAsString(), second->prepared.plan.SerializeAsString());
}

// Killed below every limit of the plan: it must hold less than it did then, margin included.
TEST(LadderTest, ALimitThatNoPlanKnowsIsWhatTheRankHeld) {
  const v1::Plan ran_out = PlanWith(16);
  const int64_t learned = LearnedFrom(110 * kMiB);
  const auto chosen = FindFallback(Open(), MakeBudget(int64_t{1} << 40, learned), ran_out);
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(chosen->fallback, "micro_batch");
  EXPECT_LE(Arena(chosen->prepared.plan) + learned, Arena(ran_out) + SeenFrom(learned));
}

// The host's memory is the device's on a CPU: moving states there frees nothing.
TEST(LadderTest, OffloadHelpsAgainstTheDevicesLimitOnly) {
  v1::JobSpec spec = Open();
  spec.mutable_resources()->set_host_memory(int64_t{1} << 30);
  spec.mutable_layout()->set_micro_batch(1);
  spec.mutable_layout()->set_recompute("none");
  spec.mutable_model()->set_config_json(
      TinyConfig("gpt2", {.vocabulary = 8009, .hidden = 256, .layers = 4, .sequence = 12}));
  spec.mutable_data()->set_sequence_length(12);
  const v1::Plan ran_out = PlanWith(1, spec);
  const int64_t learned = LearnedFrom(110 * kMiB);
  const int64_t limit = Arena(ran_out) + 109 * kMiB;
  const auto chosen = FindFallback(spec, MakeBudget(limit, learned), ran_out);
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ(chosen->fallback, "host");
  EXPECT_THAT(chosen->change, HasSubstr("layout.offload.optimizer host"));
  const auto killed = FindFallback(spec, MakeBudget(int64_t{1} << 40, learned), ran_out);
  EXPECT_EQ(killed.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(killed.status().message()), HasSubstr("control group"));
}

TEST(LadderTest, ThePinnedKeyInTheWayIsNamedWithTheValueThatFits) {
  v1::JobSpec spec = Open();
  spec.mutable_layout()->set_micro_batch(16);
  spec.mutable_layout()->set_recompute("none");
  const v1::Plan ran_out = PlanWith(16);
  const int64_t learned = LearnedFrom(110 * kMiB);
  const int64_t limit = Arena(PlanWith(8)) + learned;
  const auto chosen = FindFallback(spec, MakeBudget(limit, learned), ran_out);
  EXPECT_EQ(chosen.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(chosen.status().message()),
              AllOf(HasSubstr("126.0 MiB outside its arenas"), HasSubstr("device_memory"),
                    HasSubstr("release it or set layout.micro_batch 8"),
                    Not(HasSubstr("recompute block"))));
}

TEST(LadderTest, AtTheBottomTheWayOutIsMoreMemory) {
  const v1::Plan ran_out = PlanWith(1);
  const int64_t learned = LearnedFrom(110 * kMiB);
  const auto chosen = FindFallback(Open(), MakeBudget(100 * kMiB, learned), ran_out);
  EXPECT_EQ(chosen.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(chosen.status().message()),
              AllOf(HasSubstr("find what grows"), HasSubstr("device_memory to at least"),
                    HasSubstr("offer resources.host_memory or resources.nvme")));
}

// The device would have room for what rests elsewhere, and elsewhere has too little: more of the
// device is not the way out.
TEST(LadderTest, WhereTheHostIsTooSmallTheHostIsNamed) {
  v1::JobSpec spec = Open();
  spec.mutable_resources()->set_host_memory(8 * kMiB);
  spec.mutable_layout()->set_micro_batch(1);
  spec.mutable_layout()->set_recompute("none");
  spec.mutable_model()->set_config_json(
      TinyConfig("gpt2", {.vocabulary = 8009, .hidden = 256, .layers = 4, .sequence = 12}));
  spec.mutable_data()->set_sequence_length(12);
  const v1::Plan ran_out = PlanWith(1, spec);
  const int64_t learned = LearnedFrom(110 * kMiB);
  const auto chosen = FindFallback(spec, MakeBudget(Arena(ran_out) + 109 * kMiB, learned), ran_out);
  EXPECT_EQ(chosen.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(chosen.status().message()),
              AllOf(HasSubstr("raise what resources offers beside the device: "),
                    HasSubstr("of 8.0 MiB host memory"), Not(HasSubstr("device_memory to"))));
}

// ---- later jobs -------------------------------------------------------------------------------

TEST(LadderTest, ALearnedFigureMakesRoomButRefusesNothing) {
  v1::JobSpec spec = Open();  // short, since all that could fit is compiled before it is refused
  spec.mutable_model()->set_config_json(TinyConfig("gpt2"));
  spec.mutable_data()->set_sequence_length(12);
  const int64_t learned = 150 * kMiB;
  const int64_t room = Arena(PlanWith(1, spec));
  const auto smaller = PrepareWithLearned(spec, MakeBudget(room + learned, learned));
  ASSERT_TRUE(smaller.ok()) << smaller.status();
  EXPECT_EQ(smaller->plan.memory(0).external_bytes(), learned);
  EXPECT_LE(Arena(smaller->plan), room);
  const auto without = PrepareWithLearned(spec, MakeBudget(room + kCpuExternalBytes, learned));
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ(without->plan.memory(0).external_bytes(), kCpuExternalBytes);
}

TEST(LadderTest, WhatWasLearnedBelowTheUsualChangesNothing) {
  const auto usual = Prepare(Open(), MakeBudget());
  const auto learned = Prepare(Open(), MakeBudget(0, kMiB));
  EXPECT_EQ(usual->plan.SerializeAsString(), learned->plan.SerializeAsString());
}

}  // namespace
}  // namespace terrace
