// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/process_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

namespace terrace {
namespace {

using testing::HasSubstr;

// One that is there at once, and one whose many layers keep its planner busy for many seconds.
constexpr char kTiny[] = R"(
name: tiny
model: {config: {model_type: gpt2, vocab_size: 256, n_positions: 64, n_embd: 32, n_layer: 1, n_head: 4}}
data: {train: [text.txt], tokenizer: bytes, sequence_length: 32}
train: {steps: 10, global_batch: 4}
checkpoint: {directory: checkpoints}
)";
constexpr char kHuge[] = R"(
name: huge
model: {config: {model_type: gpt2, vocab_size: 256, n_positions: 64, n_embd: 32, n_layer: 4000, n_head: 4}}
data: {train: [text.txt], tokenizer: bytes, sequence_length: 32}
train: {steps: 10, global_batch: 4}
checkpoint: {directory: checkpoints}
)";

// Of this process.
std::set<pid_t> Children() {
  std::set<pid_t> pids;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "children");
    for (pid_t pid = 0; file >> pid;) pids.insert(pid);
  }
  return pids;
}

TEST(PlanShareTest, IsAQuarterOfTheMachineOrOfTheSmallerControlGroup) {
  EXPECT_EQ(PlanShare(64 << 20, std::nullopt), 16 << 20);
  EXPECT_EQ(PlanShare(64 << 20, 8 << 20), 2 << 20);
  EXPECT_EQ(PlanShare(64 << 20, 128 << 20), 16 << 20) << "a group may allow more than there is";
}

class Asked {
 public:
  Asked(ProcessPlanner& planner, v1::PlannerRequest request, int64_t size = 0,
        std::function<bool()> abandoned = nullptr) {
    planner.Start({.request = std::move(request),
                   .size = size,
                   .abandoned = std::move(abandoned),
                   .done = [this](absl::StatusOr<v1::PlannerAnswer> answer) {
                     answer_ = std::move(answer);
                     done_.Notify();
                   }});
  }
  const absl::StatusOr<v1::PlannerAnswer>& Wait() {
    done_.WaitForNotification();
    return answer_;
  }
  bool done() const { return done_.HasBeenNotified(); }

 private:
  absl::StatusOr<v1::PlannerAnswer> answer_;
  absl::Notification done_;
};

v1::PlannerRequest Read(const std::string& yaml) {
  v1::PlannerRequest request;
  request.mutable_read_spec()->set_yaml(yaml);
  request.mutable_read_spec()->set_base_directory("/base");
  return request;
}

v1::PlannerRequest Plan(ProcessPlanner& planner, const std::string& yaml) {
  v1::PlannerRequest request;
  *request.mutable_plan()->mutable_spec() = Asked(planner, Read(yaml)).Wait().value().spec();
  *request.mutable_plan()->mutable_budget() = ToMessage(Budget{});
  return request;
}

class ProcessPlannerTest : public testing::Test {
 protected:
  void TearDown() override { EXPECT_TRUE(Children().empty()); }

  static ProcessPlanner::Options Options() { return {.program = TERRACE_COORDINATOR}; }
};

TEST_F(ProcessPlannerTest, SpecsAreReadAndPlannedAndErrorsComeBack) {
  ProcessPlanner planner(Options());
  Asked read(planner, Read(kTiny));
  ASSERT_TRUE(read.Wait().ok()) << read.Wait().status();
  EXPECT_EQ(read.Wait()->layers(), 1);
  Asked planned(planner, Plan(planner, kTiny));
  ASSERT_TRUE(planned.Wait().ok()) << planned.Wait().status();
  EXPECT_EQ(planned.Wait()->plan().job(), "tiny");
  ASSERT_EQ(planned.Wait()->programs_size(), 1);
  EXPECT_EQ(planned.Wait()->programs(0).sha256(), planned.Wait()->plan().program_sha256(0));

  Asked wrong(planner, Read("name: ["));
  EXPECT_EQ(wrong.Wait().status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ProcessPlannerTest, SmallPlansPassLargeOnes) {
  ProcessPlanner planner(Options());
  const v1::PlannerRequest huge = Plan(planner, kHuge), tiny = Plan(planner, kTiny);
  std::deque<Asked> asked;  // more than there are lanes
  for (int i = 0; i < 2 * (kQuickPlans + kSlowPlans); ++i) asked.emplace_back(planner, huge, 4000);
  absl::SleepFor(kQuickTime / 2);
  const absl::Time begin = absl::Now();
  Asked small(planner, tiny, 1);
  EXPECT_TRUE(small.Wait().ok()) << small.Wait().status();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
  for (const Asked& one : asked) EXPECT_FALSE(one.done());
  planner.Stop();
  for (Asked& one : asked) EXPECT_TRUE(absl::IsUnavailable(one.Wait().status()));
}

TEST_F(ProcessPlannerTest, AKilledProcessIsAnErrorOfItsPlanOnly) {
  ProcessPlanner planner(Options());
  const v1::PlannerRequest huge = Plan(planner, kHuge), tiny = Plan(planner, kTiny);
  Asked large(planner, huge);
  absl::SleepFor(absl::Milliseconds(200));
  for (const pid_t pid : Children()) kill(pid, SIGKILL);
  EXPECT_EQ(large.Wait().status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(large.Wait().status().message()), HasSubstr("killed by signal 9"));
  Asked small(planner, tiny);
  EXPECT_TRUE(small.Wait().ok()) << small.Wait().status();
}

TEST_F(ProcessPlannerTest, TimeAndMemoryAreLimited) {
  ProcessPlanner::Options options = Options();
  options.time = absl::Milliseconds(300);
  ProcessPlanner hasty(options);
  Asked slow(hasty, Plan(hasty, kHuge));
  EXPECT_EQ(slow.Wait().status().code(), absl::StatusCode::kFailedPrecondition)
      << "that says nothing about whether it fits";
  EXPECT_THAT(std::string(slow.Wait().status().message()), HasSubstr("--plan-seconds"));

  options = Options();
  options.memory_bytes = 256 << 20;
  ProcessPlanner small(options);
  Asked large(small, Plan(small, kHuge));
  EXPECT_EQ(large.Wait().status().code(), absl::StatusCode::kFailedPrecondition)
      << "that says nothing about whether it fits";
  EXPECT_THAT(std::string(large.Wait().status().message()), HasSubstr("--plan-memory"));
}

TEST_F(ProcessPlannerTest, APlanThatNobodyWaitsForEnds) {
  ProcessPlanner planner(Options());
  const v1::PlannerRequest huge = Plan(planner, kHuge);
  const std::set<pid_t> idle = Children();
  std::atomic<bool> abandoned = false;
  Asked large(planner, huge, 0, [&abandoned] { return abandoned.load(); });
  absl::SleepFor(absl::Milliseconds(200));
  EXPECT_FALSE(large.done());
  abandoned = true;
  EXPECT_EQ(large.Wait().status().code(), absl::StatusCode::kCancelled);
  const std::set<pid_t> left = Children();
  EXPECT_TRUE(std::includes(idle.begin(), idle.end(), left.begin(), left.end()));
}

TEST_F(ProcessPlannerTest, AProcessThatWasQuickIsAskedAgainAndOneThatDiedIsReplaced) {
  ProcessPlanner planner(Options());
  std::set<pid_t> used;
  for (int i = 0; i < 20; ++i) {
    Asked read(planner, Read(kTiny));
    ASSERT_TRUE(read.Wait().ok()) << read.Wait().status();
    const std::set<pid_t> now = Children();
    used.insert(now.begin(), now.end());
  }
  EXPECT_LE(used.size(), size_t{kQuickPlans + kSlowPlans}) << "one for each thread";
  for (const pid_t pid : Children()) kill(pid, SIGKILL);
  absl::SleepFor(absl::Milliseconds(200));  // until they are gone
  for (int i = 0; i < 8; ++i) {
    Asked read(planner, Read(kTiny));
    EXPECT_TRUE(read.Wait().ok()) << "who died idle is no error of the next: "
                                  << read.Wait().status();
  }
}

TEST_F(ProcessPlannerTest, StoppingEndsAtOnceWhatIsUnderWayAndWhatWaits) {
  ProcessPlanner planner(Options());
  const v1::PlannerRequest huge = Plan(planner, kHuge);
  std::deque<Asked> asked;
  for (int i = 0; i < 6; ++i) asked.emplace_back(planner, huge);
  absl::SleepFor(absl::Milliseconds(200));
  const absl::Time begin = absl::Now();
  planner.Stop();
  EXPECT_LT(absl::Now() - begin, absl::Seconds(1));
  for (Asked& one : asked) EXPECT_TRUE(absl::IsUnavailable(one.Wait().status()));
  Asked late(planner, huge);
  EXPECT_TRUE(absl::IsUnavailable(late.Wait().status()));
}

TEST_F(ProcessPlannerTest, TheQueueHasALimitForNewSpecs) {
  ProcessPlanner planner(Options());
  const v1::PlannerRequest huge = Plan(planner, kHuge);
  std::deque<Asked> asked;
  for (size_t i = 0; i < kPlansQueuedMax + kQuickPlans + kSlowPlans; ++i) {
    asked.emplace_back(planner, huge);
  }
  Asked more(planner, Read(kTiny));
  EXPECT_EQ(more.Wait().status().code(), absl::StatusCode::kResourceExhausted);
  planner.Stop();
}

}  // namespace
}  // namespace terrace
