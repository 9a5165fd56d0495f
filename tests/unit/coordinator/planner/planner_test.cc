// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "coordinator/planner/profiles.h"
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

TEST(PlannerTest, WhatThisVersionCannotDoIsRefusedByKey) {
  const auto refusal = [](void (*pin)(v1::LayoutSpec*)) {
    v1::JobSpec spec = Spec(8);
    pin(spec.mutable_layout());
    return Refusal(spec);
  };
  EXPECT_THAT(refusal([](v1::LayoutSpec* l) { l->set_tp(2); }), HasSubstr("layout.tp: got 2"));
  EXPECT_THAT(refusal([](v1::LayoutSpec* l) { l->set_pp(4); }), HasSubstr("layout.pp: got 4"));
  EXPECT_THAT(refusal([](v1::LayoutSpec* l) { l->set_cp(2); }), HasSubstr("layout.cp: got 2"));
  EXPECT_THAT(refusal([](v1::LayoutSpec* l) { l->set_zero(3); }), HasSubstr("layout.zero: got 3"));
  EXPECT_THAT(refusal([](v1::LayoutSpec* l) { l->set_recompute("full"); }),
              HasSubstr("layout.recompute: got 'full'"));
  EXPECT_THAT(refusal([](v1::LayoutSpec* l) { l->set_dp(3); }),
              AllOf(HasSubstr("layout.dp: got 3"), HasSubstr("must be 1")));
}

TEST(PlannerTest, OneMayBePinnedWhereOneIsAllThereIs) {
  v1::JobSpec spec = Spec(8);
  spec.mutable_layout()->set_tp(1);
  spec.mutable_layout()->set_zero(-1);
  spec.mutable_layout()->set_recompute("none");
  EXPECT_TRUE(CandidatesOf(spec).ok());
}

}  // namespace
}  // namespace terrace
