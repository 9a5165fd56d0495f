// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/caching_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Keeps what it is asked for until a test answers it.
class HeldPlanner final : public Planner {
 public:
  void Start(Work work) override { held.push_back(std::move(work)); }
  void Stop() override {}

  void Answer(absl::StatusOr<v1::PlannerAnswer> answer) {
    const Work work = std::move(held.front());
    held.pop_front();
    work.done(std::move(answer));
  }

  std::deque<Work> held;
};

v1::PlannerRequest Request(const std::string& name, int64_t steps = 10) {
  v1::PlannerRequest request;
  v1::JobSpec& spec = *request.mutable_plan()->mutable_spec();
  spec.set_name(name);
  spec.set_yaml(absl::StrCat("name: ", name));
  spec.mutable_train()->set_steps(steps);
  spec.mutable_checkpoint()->set_directory("/checkpoints/" + name);
  return request;
}

v1::PlannerAnswer PlanOf(const std::string& name, size_t program_bytes = 10) {
  v1::PlannerAnswer answer;
  answer.mutable_plan()->set_job(name);
  answer.mutable_plan()->mutable_layout()->set_ranks(7);
  answer.add_programs()->set_bytes(std::string(program_bytes, 'p'));
  return answer;
}

v1::PlannerAnswer Refusal() {
  v1::PlannerAnswer answer;
  answer.set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
  return answer;
}

class CachingPlannerTest : public testing::Test {
 protected:
  void Ask(CachingPlanner& planner, const v1::PlannerRequest& request) {
    planner.Start({.request = request, .done = [this](absl::StatusOr<v1::PlannerAnswer> answer) {
                     answers_.push_back(!answer.ok()          ? answer.status().ToString()
                                        : answer->code() != 0 ? "refused"
                                                              : answer->plan().job());
                     const bool is_plan = answer.ok() && answer->code() == 0;
                     EXPECT_TRUE(!is_plan || answer->plan().layout().ranks() == 7);
                   }});
  }

  HeldPlanner inner_;
  std::vector<std::string> answers_;
};

TEST_F(CachingPlannerTest, JobsThatDifferInNameAndDirectoryShareAPlan) {
  CachingPlanner planner(inner_);
  Ask(planner, Request("a"));
  inner_.Answer(PlanOf("a"));
  Ask(planner, Request("b"));
  EXPECT_THAT(inner_.held, IsEmpty());
  EXPECT_THAT(answers_, ElementsAre("a", "b")) << "each with its own name";
}

TEST_F(CachingPlannerTest, WhatAPlanDependsOnMakesAnother) {
  CachingPlanner planner(inner_);
  Ask(planner, Request("a"));
  inner_.Answer(PlanOf("a"));
  Ask(planner, Request("a", 11));
  v1::PlannerRequest other = Request("a");
  other.mutable_plan()->mutable_budget()->set_ranks(2);
  Ask(planner, other);
  v1::PlannerRequest listed = Request("a");
  listed.mutable_plan()->mutable_listing();
  Ask(planner, listed);
  EXPECT_EQ(inner_.held.size(), 3u);
}

TEST_F(CachingPlannerTest, ThoseThatComeMeanwhileWaitForTheFirst) {
  CachingPlanner planner(inner_);
  for (const char* name : {"a", "b", "c"}) Ask(planner, Request(name));
  ASSERT_EQ(inner_.held.size(), 1u);
  inner_.Answer(PlanOf("a"));
  EXPECT_THAT(answers_, ElementsAre("a", "b", "c"));
}

TEST_F(CachingPlannerTest, AfterARefusalTheNextIsAskedForItself) {
  CachingPlanner planner(inner_);
  for (const char* name : {"a", "b", "c"}) Ask(planner, Request(name));
  inner_.Answer(Refusal());
  ASSERT_EQ(inner_.held.size(), 1u);
  inner_.Answer(absl::CancelledError("nobody waits"));
  ASSERT_EQ(inner_.held.size(), 1u);
  inner_.Answer(PlanOf("b"));
  EXPECT_THAT(answers_,
              ElementsAre("refused", "CANCELLED: nobody waits", testing::AnyOf("b", "c")));
  Ask(planner, Request("d"));
  EXPECT_EQ(answers_.back(), "d");
}

TEST_F(CachingPlannerTest, WhereNobodyPlansAllAreTold) {
  CachingPlanner planner(inner_);
  for (const char* name : {"a", "b"}) Ask(planner, Request(name));
  inner_.Answer(absl::UnavailableError("stops"));
  EXPECT_THAT(inner_.held, IsEmpty());
  EXPECT_THAT(answers_, ElementsAre("UNAVAILABLE: stops", "UNAVAILABLE: stops"));
}

TEST_F(CachingPlannerTest, WhatWasUsedLastStays) {
  CachingPlanner planner(inner_, /*bytes_kept=*/2500);
  const auto plan = [&](int64_t steps) {
    Ask(planner, Request("a", steps));
    const bool made = !inner_.held.empty();
    if (made) inner_.Answer(PlanOf("a", 1000));
    return made;
  };
  EXPECT_TRUE(plan(1));
  EXPECT_TRUE(plan(2));
  EXPECT_FALSE(plan(1));
  EXPECT_TRUE(plan(3)) << "in place of 2";
  EXPECT_FALSE(plan(1));
  EXPECT_TRUE(plan(2));
  Ask(planner, Request("a", 4));
  inner_.Answer(PlanOf("a", 5000));  // more than may be kept at all
  EXPECT_TRUE(plan(4));
}

}  // namespace
}  // namespace terrace
