// Jobs that give their devices to jobs of a higher priority, jobs that are requeued, and arrays of
// which only so many run at a time.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "tests/unit/coordinator/jobs/reconciler_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class ReconcilerPreemptTest : public ReconcilerTest {
 protected:
  void StartWith(const QueueOptions& options) {
    reconciler_ =
        std::make_unique<Reconciler>(Reconciler::Timing{}, store_, clock_, *this, options);
    ASSERT_TRUE(reconciler_->Load().ok());
    for (auto& [name, worker] : workers_) Connect(*worker);
  }
  static v1::JobSpec Asking(const std::string& name, int32_t priority, uint32_t devices = 1) {
    v1::JobSpec spec = Spec(name, devices);
    spec.set_priority(priority);
    spec.mutable_train()->set_steps(100'000);
    return spec;
  }
  static QueueOptions Preempting(int64_t exempt_seconds = 0) {
    return {.preempt_priority = 10, .preempt_exempt_seconds = exempt_seconds};
  }
  std::string SubmitMember(const std::string& name, const v1::ArrayMember& member) {
    const v1::JobSpec spec = Spec(name);
    const auto job = reconciler_->Submit(spec, PrepareFake(spec, *reconciler_->BudgetNow(spec)),
                                         {.member = member});
    EXPECT_TRUE(job.ok()) << job.status();
    Settle();
    return job.ok() ? job->id() : "";
  }
  static v1::ArrayMember Member(const std::string& array, uint32_t index, uint32_t running_max) {
    v1::ArrayMember member;
    member.set_array(array);
    member.set_index(index);
    member.set_size(3);
    member.set_running_max(running_max);
    return member;
  }
};

TEST_F(ReconcilerPreemptTest, AJobStopsAfterACheckpointForOneThatAsksForMuchMore) {
  AddWorker("w0", 1);
  StartWith(Preempting());
  const std::string low = RunningJob(Asking("low", 0));
  const std::string high = Submit(Asking("high", 10));
  // The fake worker stops its ranks at once, as after a checkpoint.
  Pass(2'000);
  EXPECT_EQ(JobNow(high).state(), v1::STARTING);
  EXPECT_EQ(JobNow(low).state(), v1::QUEUED);
  EXPECT_EQ(JobNow(low).preemptions(), 1);
  EXPECT_EQ(JobNow(low).reason(), v1::REASON_WAITING_FOR_DEVICES);
  EXPECT_EQ(JobNow(low).restarts(), 0) << "that is no failure";
  EXPECT_EQ(reconciler_->Stats().preemptions, 1);
  ASSERT_TRUE(reconciler_->Cancel(high, true).ok());
  Pass(2'000);
  EXPECT_EQ(JobNow(low).state(), v1::STARTING) << "it goes on when the other has ended";
  EXPECT_EQ(JobNow(low).preempted_by(), "");
}

TEST_F(ReconcilerPreemptTest, TheWaitingJobSaysWhoStopsForItAndNobodyElseIsStopped) {
  AddWorker("w0", 2);
  StartWith(Preempting());
  v1::JobSpec hanging = Asking("low", 0);
  const std::string low = RunningJob(hanging);
  const std::string other = RunningJob(Asking("other", 0));
  workers_["w0"]->deaf = true;  // its ranks train on
  const std::string high = Submit(Asking("high", 10));
  Pass(3'000);
  const bool first = JobNow(low).reason() == v1::REASON_PREEMPTED;
  const std::string& stops = first ? low : other;
  EXPECT_EQ(JobNow(stops).message(), "stops after a checkpoint for job " + high +
                                         ", which has a higher priority and needs its devices");
  EXPECT_EQ(JobNow(first ? other : low).reason(), v1::REASON_NONE);
  EXPECT_EQ(reconciler_->Stats().preemptions, 1);
  EXPECT_EQ(JobNow(high).state(), v1::QUEUED);
  ASSERT_EQ(JobNow(high).waits_size(), 2);
  EXPECT_EQ(JobNow(high).waits(1).message(), stops + " stops for it, after a checkpoint");
}

TEST_F(ReconcilerPreemptTest, WhoMayNotBeStoppedIsNot) {
  AddWorker("w0", 1);
  const auto stays = [this](const v1::JobSpec& low, const v1::JobSpec& high, int64_t pass_ms,
                            const QueueOptions& options) {
    StartWith(options);
    const std::string runs = RunningJob(low);
    const std::string waits = Submit(high);
    Pass(pass_ms);
    const bool is_running = JobNow(runs).state() == v1::RUNNING;
    EXPECT_TRUE(reconciler_->Cancel(waits, true).ok());
    EXPECT_TRUE(reconciler_->Cancel(runs, true).ok());
    Settle();
    return is_running;
  };
  const v1::JobSpec low = Asking("low", 0), high = Asking("high", 10);
  EXPECT_TRUE(stays(low, high, 2'000, {})) << "preemption is off";
  EXPECT_TRUE(stays(low, Asking("higher", 9), 2'000, Preempting())) << "9 is less than 10 more";
  EXPECT_TRUE(stays(low, high, 2'000, Preempting(60))) << "it has just started";
  EXPECT_FALSE(stays(low, high, 70'000, Preempting(60)));
  v1::JobSpec unsaved = low;
  unsaved.mutable_checkpoint()->set_save("never");
  EXPECT_TRUE(stays(unsaved, high, 2'000, Preempting())) << "its steps would be lost";
  v1::JobSpec ends = low;
  ends.mutable_train()->set_steps(30);
  EXPECT_TRUE(stays(ends, high, 2'000, Preempting())) << "it is planned to end in 30 s";
}

TEST_F(ReconcilerPreemptTest, ARequeuedJobLetsTheNextOneStart) {
  AddWorker("w0", 1);
  const std::string first = RunningJob(Asking("first", 0));
  const std::string second = Submit(Asking("second", 0));
  ASSERT_TRUE(reconciler_->Requeue(first, false).ok());
  Pass(2'000);
  EXPECT_EQ(JobNow(second).state(), v1::STARTING);
  EXPECT_EQ(JobNow(first).state(), v1::QUEUED);
  EXPECT_LT(JobNow(first).priority(), 2.0);
  ASSERT_TRUE(reconciler_->Cancel(second, true).ok());
  Pass(2'000);
  EXPECT_EQ(JobNow(first).state(), v1::STARTING);
  EXPECT_FALSE(reconciler_->Requeue(second, false).ok()) << "it has ended";
  EXPECT_EQ(reconciler_->Requeue("nobody-9", false).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ReconcilerPreemptTest, OfAnArrayOnlySoManyRunAtATime) {
  AddWorker("w0", 4);
  const std::string first = SubmitMember("a", Member("", 0, 1));
  EXPECT_EQ(JobNow(first).array().array(), first);
  const std::string second = SubmitMember("a", Member(first, 1, 1));
  EXPECT_EQ(JobNow(first).state(), v1::STARTING);
  EXPECT_EQ(JobNow(second).state(), v1::QUEUED);
  EXPECT_EQ(JobNow(second).reason(), v1::REASON_ARRAY_LIMIT);
  EXPECT_THAT(JobNow(second).message(),
              HasSubstr("1 of its array " + first + " hold devices, and at most 1 may at a time"));
  EXPECT_EQ(JobNow(Submit(Spec("other"))).state(), v1::STARTING) << "it keeps none from others";
  ASSERT_TRUE(reconciler_->Cancel(first, true).ok());
  Settle();
  EXPECT_EQ(JobNow(second).state(), v1::STARTING);
}

TEST_F(ReconcilerPreemptTest, AJobOfNoArrayThatThereIsIsRefused) {
  AddWorker("w0", 4);
  const std::string alone = Submit(Spec("alone"));
  const auto code = [this](v1::ArrayMember member, const std::string& owner = "") {
    return reconciler_->CheckMember(member, owner).code();
  };
  EXPECT_EQ(code(v1::ArrayMember()), absl::StatusCode::kOk);
  EXPECT_EQ(code(Member(alone, 1, 0)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Member("nobody-9", 1, 0)), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(Member("", 3, 0)), absl::StatusCode::kInvalidArgument);
  const std::string first = SubmitMember("a", Member("", 0, 0));
  EXPECT_EQ(code(Member(first, 1, 0)), absl::StatusCode::kOk);
  EXPECT_EQ(code(Member(first, 1, 0), "bob"), absl::StatusCode::kPermissionDenied);
  v1::ArrayMember control = Member("", 0, 0);
  control.add_values()->set_value("a\x1b[2J");
  EXPECT_EQ(code(control), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace terrace
