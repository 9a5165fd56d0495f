// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/jobs/reconciler.h"
#include "coordinator/life/hang.h"
#include "tests/unit/coordinator/jobs/reconciler_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

class ReconcilerHangTest : public ReconcilerTest {
 protected:
  v1::JobSpec Watched(const std::string& on_hang) {
    v1::JobSpec spec = Spec("a", 2);
    spec.mutable_watchdog()->set_on_hang(on_hang);
    spec.mutable_watchdog()->set_timeout_seconds(60);
    return spec;
  }
  // A gang of two that has done a step.
  std::string TrainingJob(const v1::JobSpec& spec) {
    AddWorker("w0", 2);
    const std::string id = RunningJob(spec);
    Settle();
    for (uint32_t rank = 0; rank < 2; ++rank) {
      v1::RankReport& report = RankOf("w0", id, rank);
      report.set_pid(static_cast<int32_t>(100 + rank));
      report.mutable_progress()->set_step(1);
      report.mutable_progress()->set_step_seconds(1);
      Place(id, rank, 0);
    }
    Settle();
    return id;
  }
  void Place(const std::string& id, uint32_t rank, int64_t standing_ms,
             v1::ProcessState process = v1::PROCESS_WAITING) {
    v1::RankPlace& place = *RankOf("w0", id, rank).mutable_place();
    place.set_standing_ms(standing_ms);
    place.set_activity(v1::ACTIVITY_STEP);
    place.set_places(5);
    place.set_step(2);
    place.set_sequence("train");
    place.set_process(process);
    place.set_process_words(process == v1::PROCESS_STOPPED ? "is stopped by a signal" : "sleeps");
    place.set_instruction(rank == 1 ? "12 matmul" : "");
    place.clear_groups();
    v1::GroupPlace* group = place.add_groups();
    group->set_group("data.0");
    group->set_arrived(rank == 0);
    group->set_instruction(rank == 0 ? "15 all_reduce" : "");
  }
  void Stop(const std::string& id, int64_t standing_ms) {
    Place(id, 0, standing_ms);
    Place(id, 1, standing_ms, v1::PROCESS_STOPPED);
    Settle();
  }
  int Dumps() {
    int dumps = 0;
    for (const v1::CoordinatorMessage& message : workers_["w0"]->received)
      dumps += message.has_dump();
    return dumps;
  }
  std::vector<v1::JobEvent> Events(const std::string& id) { return *store_.Events(id, 0, 1000); }
};

TEST_F(ReconcilerHangTest, AStoppedRankIsToldOnceAndTheEndOfIt) {
  const std::string id = TrainingJob(Watched("tell"));
  Stop(id, kStoppedMs - 1);
  EXPECT_EQ(JobNow(id).reason(), v1::REASON_NONE);
  Stop(id, kStoppedMs);
  EXPECT_EQ(JobNow(id).state(), v1::RUNNING);
  EXPECT_EQ(JobNow(id).reason(), v1::REASON_RANK_HANGS);
  EXPECT_THAT(JobNow(id).message(),
              HasSubstr("rank 1 on w0 (process 101) is stopped by a signal, at instruction 12 "
                        "matmul of step 2 (train); rank 0 waits for it"));
  EXPECT_EQ(JobNow(id).hang().ranks(0), 1u);
  EXPECT_EQ(Dumps(), 1);
  const size_t events = Events(id).size();
  EXPECT_TRUE(Events(id).back().state().has_hang());
  Stop(id, 600'000);
  EXPECT_EQ(Events(id).size(), events) << "it is told already";
  EXPECT_EQ(Dumps(), 1);
  ControlStats stats = reconciler_->Stats();
  EXPECT_EQ(stats.hangs["stopped"], 1);
  EXPECT_EQ(stats.shown[0].hang_rank, 1);
  EXPECT_GE(stats.shown[0].hang_seconds, 5);
  Place(id, 0, 0);
  Place(id, 1, 0);
  Settle();
  EXPECT_EQ(JobNow(id).reason(), v1::REASON_NONE);
  EXPECT_EQ(JobNow(id).message(), "");
  EXPECT_FALSE(JobNow(id).has_hang());
  EXPECT_EQ(reconciler_->Stats().shown[0].hang_rank, -1);
  Stop(id, kStoppedMs);
  EXPECT_EQ(Dumps(), 2) << "another one";
}

TEST_F(ReconcilerHangTest, ARankMayStandForThreeSteps) {
  const std::string id = TrainingJob(Watched("tell"));
  for (uint32_t rank = 0; rank < 2; ++rank) {
    RankOf("w0", id, rank).mutable_progress()->set_step(2);
    RankOf("w0", id, rank).mutable_progress()->set_step_seconds(20);
  }
  Settle();
  for (const int64_t ms : {59'000, 61'000}) {
    Place(id, 0, ms);
    Place(id, 1, ms);
    Settle();
    EXPECT_EQ(JobNow(id).has_hang(), ms > 60'000) << ms;
  }
  EXPECT_THAT(JobNow(id).message(), HasSubstr("rank 1 on w0 (process 101) does nothing any more"));
}

TEST_F(ReconcilerHangTest, TheFirstStepMayTakeLonger) {
  AddWorker("w0", 2);
  const std::string id = RunningJob(Watched("tell"));
  Settle();
  for (const int64_t ms : {kFirstStandingMs - 1, kFirstStandingMs}) {
    Place(id, 0, ms);
    Place(id, 1, ms);
    Settle();
    EXPECT_EQ(JobNow(id).has_hang(), ms == kFirstStandingMs) << ms;
  }
}

TEST_F(ReconcilerHangTest, AJobThatHangsForItsTimeoutIsRestarted) {
  const std::string id = TrainingJob(Watched("restart"));
  Stop(id, 59'999);
  EXPECT_THAT(JobNow(id).message(), HasSubstr("; restarts after 60 s of that"));
  EXPECT_EQ(JobNow(id).epoch(), 1);
  Stop(id, 60'000);
  EXPECT_EQ(JobNow(id).epoch(), 2);
  EXPECT_EQ(JobNow(id).restarts(), 1);
  EXPECT_EQ(JobNow(id).last_restarts(0).reason(), v1::REASON_RANK_HANGS);
  EXPECT_THAT(JobNow(id).last_restarts(0).message(),
              HasSubstr("is stopped by a signal, at instruction 12 matmul of step 2"));
  EXPECT_FALSE(JobNow(id).has_hang());
  EXPECT_EQ(reconciler_->Stats().restarts[v1::REASON_RANK_HANGS], 1);
}

TEST_F(ReconcilerHangTest, AJobThatIsToBeLeftAloneIs) {
  const std::string id = TrainingJob(Watched("tell"));
  Stop(id, 3'600'000);
  EXPECT_EQ(JobNow(id).epoch(), 1);
  EXPECT_THAT(JobNow(id).message(), Not(HasSubstr("restarts after")));
}

TEST_F(ReconcilerHangTest, RestartsOfHangsAreBoundedToo) {
  v1::JobSpec spec = Watched("restart");
  spec.set_max_restarts(0);
  const std::string id = TrainingJob(spec);
  Stop(id, 60'000);
  EXPECT_EQ(JobNow(id).state(), v1::FAILED);
  EXPECT_EQ(JobNow(id).reason(), v1::REASON_RESTARTS_EXHAUSTED);
  EXPECT_THAT(JobNow(id).message(), HasSubstr("is stopped by a signal"));
}

TEST_F(ReconcilerHangTest, AWorkerThatIsAwayNeitherBeginsNorEndsAHang) {
  const std::string id = TrainingJob(Watched("tell"));
  Stop(id, kStoppedMs);
  ASSERT_TRUE(JobNow(id).has_hang());
  Disconnect(*workers_["w0"]);
  Pass(1000);
  EXPECT_TRUE(JobNow(id).has_hang());
}

TEST_F(ReconcilerHangTest, AHangOutlivesTheCoordinator) {
  const std::string id = TrainingJob(Watched("tell"));
  Stop(id, 12'000);
  ASSERT_TRUE(JobNow(id).has_hang());
  const size_t events = Events(id).size();
  StartCoordinator();
  Connect(*workers_["w0"]);
  Settle();
  EXPECT_TRUE(JobNow(id).has_hang());
  EXPECT_EQ(Events(id).size(), events);
}

TEST_F(ReconcilerHangTest, AJobThatIsToStopSaysWhatItWaitsFor) {
  const std::string id = TrainingJob(Watched("tell"));
  Stop(id, kStoppedMs);
  workers_["w0"]->deaf = true;  // the rank does not listen
  ASSERT_TRUE(reconciler_->Cancel(id, /*force=*/false).ok());
  EXPECT_THAT(JobNow(id).message(),
              HasSubstr("stops after a last checkpoint, when it goes on: rank 1 on w0"));
  Place(id, 0, 0);
  Place(id, 1, 0);
  Settle();
  EXPECT_EQ(JobNow(id).message(), "stops after a last checkpoint");
  workers_["w0"]->deaf = false;
  Pass(2000);
  EXPECT_EQ(JobNow(id).state(), v1::CANCELLED);
}

TEST_F(ReconcilerHangTest, AStartSaysThatARankIsStopped) {
  AddWorker("w0", 2);
  const std::string id = Submit(Watched("restart"));
  Stop(id, kStoppedMs);
  EXPECT_EQ(JobNow(id).state(), v1::STARTING);
  EXPECT_EQ(JobNow(id).reason(), v1::REASON_RANK_HANGS);
  Place(id, 1, 0);
  Settle();
  EXPECT_EQ(JobNow(id).reason(), v1::REASON_NONE);
  Stop(id, 60'000);
  EXPECT_EQ(JobNow(id).epoch(), 2) << "a start is not waited for any longer than a step";
}

TEST_F(ReconcilerHangTest, ASlowRankIsToldAfterAWhileAndSoIsItsEnd) {
  const std::string id = TrainingJob(Watched("tell"));
  const auto work = [&](double computing, double waiting) {
    RankOf("w0", id, 1).mutable_place()->set_computing_ratio(computing);
    RankOf("w0", id, 1).mutable_place()->set_waiting_ratio(0.01);
    RankOf("w0", id, 0).mutable_place()->set_computing_ratio(0.6);
    RankOf("w0", id, 0).mutable_place()->set_waiting_ratio(waiting);
  };
  work(0.95, 0.35);
  Pass(20'000);
  EXPECT_EQ(JobNow(id).slow_ranks_size(), 0) << "it may pass";
  Pass(20'000);
  ASSERT_EQ(JobNow(id).slow_ranks_size(), 1);
  EXPECT_EQ(JobNow(id).slow_ranks(0).rank(), 1u);
  EXPECT_EQ(JobNow(id).state(), v1::RUNNING);
  EXPECT_EQ(JobNow(id).reason(), v1::REASON_NONE) << "it goes on";
  Pass(20'000);
  work(0.6, 0.05);
  Pass(6'000);
  EXPECT_EQ(JobNow(id).slow_ranks_size(), 0);
  std::vector<bool> over;
  for (const v1::JobEvent& event : Events(id)) {
    if (event.has_slow()) over.push_back(event.slow().over());
  }
  EXPECT_THAT(over, testing::ElementsAre(false, true));
  EXPECT_EQ(reconciler_->Stats().slow_ranks, 1);
}

}  // namespace
}  // namespace terrace
