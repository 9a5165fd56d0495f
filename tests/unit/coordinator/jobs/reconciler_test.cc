// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/reconciler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/unit/coordinator/jobs/reconciler_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

TEST_F(ReconcilerTest, AJobStartsWhenAllRanksAreReadyAndEndsWhenAllAreDone) {
  FakeWorker& w0 = AddWorker("w0", 1);
  FakeWorker& w1 = AddWorker("w1", 1);
  const std::string id = Submit(Spec("a", 1, 2));
  EXPECT_EQ(id, "a-1");
  EXPECT_EQ(JobNow(id).state(), v1::STARTING);
  w0.SetAll(id, v1::RANK_READY);
  Settle();
  EXPECT_EQ(JobNow(id).state(), v1::STARTING) << "rank 1 is not ready";
  w1.SetAll(id, v1::RANK_READY);
  Settle();
  EXPECT_EQ(JobNow(id).state(), v1::RUNNING);
  EXPECT_EQ(RankOf("w1", id, 1).state(), v1::RANK_RUNNING) << "it was told to go";
  w0.SetAll(id, v1::RANK_SUCCEEDED);
  w1.SetAll(id, v1::RANK_SUCCEEDED);
  Settle();
  EXPECT_EQ(JobNow(id).state(), v1::SUCCEEDED);
  Pass(1200);
  EXPECT_TRUE(w0.ranks.empty()) << "ended ranks are forgotten once their end is stored";
}

TEST_F(ReconcilerTest, MemoryIsWhatTheRanksOfThisEpochLastToldWhileTheJobRuns) {
  FakeWorker& w0 = AddWorker("w0", 2);
  const std::string id = Submit(Spec("a", 2, 1));
  EXPECT_EQ(reconciler_->Memory(id).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(reconciler_->Memory("none-1").status().code(), absl::StatusCode::kNotFound);
  w0.SetAll(id, v1::RANK_READY);
  Settle();
  ASSERT_EQ(JobNow(id).state(), v1::RUNNING);
  EXPECT_EQ(reconciler_->Memory(id)->ranks_size(), 0) << "nothing told yet";
  for (const uint32_t rank : {1u, 0u}) {
    v1::RankMemory* memory = w0.ranks[{id, rank}].mutable_memory();
    memory->set_rank(rank);
    memory->set_step(10 + rank);
  }
  Settle();
  for (auto& [key, report] : w0.ranks) report.clear_memory();
  w0.ranks[{id, 1}].mutable_memory()->set_rank(1);
  w0.ranks[{id, 1}].mutable_memory()->set_step(12);
  Settle();
  const auto memory = reconciler_->Memory(id);
  ASSERT_EQ(memory->ranks_size(), 2);
  EXPECT_EQ(memory->ranks(0).step(), 10) << "kept while heartbeats do not repeat it";
  EXPECT_EQ(memory->ranks(1).step(), 12);
  w0.SetAll(id, v1::RANK_SUCCEEDED);
  Settle();
  EXPECT_EQ(reconciler_->Memory(id).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ReconcilerTest, StepsFarOffThePlanAreSaidOnce) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  int64_t step = 0;
  const auto train = [&](int reports, double seconds) {
    for (int i = 0; i < reports; ++i) {
      v1::Progress& progress = *RankOf("w0", id, 0).mutable_progress();
      progress.set_step(++step);
      progress.set_steps(1'000'000);
      progress.set_step_seconds(seconds);
      Pass(1000);
    }
    const std::vector<v1::JobEvent> events = store_.Events(id, 0, 1000).value();
    return std::count_if(events.begin(), events.end(),
                         [](const v1::JobEvent& event) { return event.has_warning(); });
  };
  EXPECT_EQ(train(20, 1.4 * kPlannedSeconds), 0);
  EXPECT_EQ(train(4, 3 * kPlannedSeconds), 0) << "some slow steps";
  EXPECT_EQ(train(4, kPlannedSeconds), 0);
  EXPECT_EQ(train(6, kPlannedSeconds / 2.75), 1);
  EXPECT_EQ(train(20, 3 * kPlannedSeconds), 1);
  const auto doubts =
      std::count_if(w0.received.begin(), w0.received.end(),
                    [](const auto& message) { return message.has_doubt_profile(); });
  EXPECT_EQ(doubts, 1);
}

TEST_F(ReconcilerTest, AProfileIsNotInDoubtWhereAnotherJobMayBeTheCause) {
  FakeWorker& w0 = AddWorker("w0", 2);
  const std::string id = RunningJob(Spec("a"));
  RunningJob(Spec("b"));
  for (int step = 1; step < 20; ++step) {
    v1::Progress& progress = *RankOf("w0", id, 0).mutable_progress();
    progress.set_step(step);
    progress.set_step_seconds(3 * kPlannedSeconds);
    Pass(1000);
  }
  for (const v1::CoordinatorMessage& message : w0.received)
    EXPECT_FALSE(message.has_doubt_profile());
  const std::vector<v1::JobEvent> events = store_.Events(id, 0, 1000).value();
  const auto warning = std::find_if(events.begin(), events.end(),
                                    [](const auto& event) { return event.has_warning(); });
  ASSERT_NE(warning, events.end());
  EXPECT_THAT(warning->warning().text(), HasSubstr("terrace profile --refresh"));
}

TEST_F(ReconcilerTest, AProfileThatWasMeasuredAnewIsThatOfLaterPlans) {
  FakeWorker& w0 = AddWorker("w0", 1);
  v1::WorkerMessage message;
  message.mutable_profile()->set_measured(true);
  message.mutable_profile()->set_memory_bytes_per_second(7e9);
  Say(w0, message);
  EXPECT_EQ(reconciler_->BudgetNow(Spec("a"))->profile.memory_bytes_per_second(), 7e9);
  EXPECT_EQ(reconciler_->WorkerSaid("w0", /*session=*/77, message).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(ReconcilerTest, EachRankIsToldTheProgramOfItsStage) {
  FakeWorker& w0 = AddWorker("w0", 3);
  FakeWorker& w1 = AddWorker("w1", 3);
  v1::JobSpec spec = Spec("a", 3, 2);
  spec.mutable_layout()->set_tp(1);
  spec.mutable_layout()->set_pp(3);
  Submit(spec);
  std::map<uint32_t, std::string> programs;
  for (const FakeWorker* worker : {&w0, &w1}) {
    for (const v1::CoordinatorMessage& message : worker->received) {
      for (const v1::RankConfig& config : message.start().ranks()) {
        EXPECT_EQ(config.ranks(), 6u);
        programs[config.rank()] = config.program_sha256();
      }
    }
  }
  ASSERT_EQ(programs.size(), 6u);
  for (const auto& [rank, program] : programs) {
    EXPECT_EQ(program, absl::StrCat("program of stage ", rank / 2)) << "two ranks a stage";
  }
}

TEST_F(ReconcilerTest, RanksAreToldTheFormatsThatWereChosen) {
  FakeWorker& w0 = AddWorker("w0", 1);
  v1::JobSpec spec = Spec("a");
  spec.mutable_formats()->mutable_allow()->set_moments("int8");
  spec.mutable_formats()->mutable_allow()->set_activation("fp8");
  const std::string id = Submit(spec);
  const v1::FormatSpec& formats = w0.received.back().start().ranks(0).spec().formats();
  EXPECT_EQ(formats.moments(), "int8");
  EXPECT_EQ(formats.activation(), "");
  EXPECT_EQ(JobNow(id).spec().formats().moments(), "") << "another plan may choose another";
}

TEST_F(ReconcilerTest, AJobSubmittedBeforeAnyWorkerWaitsAndIsPlannedWhenOneComes) {
  const std::string id = Submit(Spec("a"));
  EXPECT_EQ(JobNow(id).state(), v1::QUEUED);
  EXPECT_EQ(JobNow(id).reason(), v1::REASON_NO_MATCHING_WORKER);
  EXPECT_THAT(JobNow(id).message(), HasSubstr("no worker is registered"));
  AddWorker("w0", 1);
  EXPECT_EQ(JobNow(id).state(), v1::STARTING);
}

TEST_F(ReconcilerTest, ThePlanOfACancelledJobIsWantedNoMore) {
  const std::string id = Submit(Spec("a"));
  auto worker = std::make_unique<FakeWorker>("w0", 1);
  sessions_["w0"] = ++last_session_;
  ASSERT_TRUE(reconciler_->WorkerRegistered(worker->node(), last_session_).ok());
  Say(*worker, worker->Heartbeat());
  reconciler_->Pass();
  ASSERT_EQ(plans_.size(), 1u) << "it is being planned";
  EXPECT_FALSE(wanted_.expired());
  ASSERT_TRUE(reconciler_->Cancel(id, /*force=*/false).ok());
  EXPECT_EQ(JobNow(id).state(), v1::CANCELLED);
  EXPECT_TRUE(wanted_.expired());
  plan_failures_.push_back(absl::CancelledError("nobody waits for this plan any more"));
  workers_["w0"] = std::move(worker);
  Settle();
  EXPECT_EQ(JobNow(id).state(), v1::CANCELLED);
}

TEST_F(ReconcilerTest, AJobThatDoesNotFitTheWorkerThatCameFails) {
  v1::JobSpec spec = Spec("a");
  spec.mutable_train()->set_global_batch(2000);
  const std::string id = Submit(spec);
  AddWorker("w0", 1);
  EXPECT_EQ(JobNow(id).state(), v1::FAILED);
  EXPECT_EQ(JobNow(id).reason(), v1::REASON_DOES_NOT_FIT);
}

TEST_F(ReconcilerTest, AJobOnBusyWorkersWaitsWithASentenceAndRunsWhenTheyAreFree) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string first = RunningJob(Spec("a"));
  const std::string second = Submit(Spec("b"));
  EXPECT_EQ(JobNow(second).state(), v1::QUEUED);
  EXPECT_EQ(JobNow(second).reason(), v1::REASON_WAITING_FOR_DEVICES);
  EXPECT_THAT(JobNow(second).message(), HasSubstr("0 of the 1 devices"));
  const int64_t version = JobNow(second).version();
  Pass(2000);
  EXPECT_EQ(JobNow(second).version(), version) << "waiting writes nothing";
  w0.SetAll(first, v1::RANK_SUCCEEDED);
  Pass(400);
  EXPECT_EQ(JobNow(second).state(), v1::STARTING);
}

TEST_F(ReconcilerTest, CancelStopsWithACheckpointAndForceKills) {
  FakeWorker& w0 = AddWorker("w0", 2);
  const std::string graceful = RunningJob(Spec("a"));
  const std::string forced = RunningJob(Spec("b"));
  ASSERT_TRUE(reconciler_->Cancel(graceful, false).ok());
  Settle();
  EXPECT_EQ(JobNow(graceful).state(), v1::CANCELLED);
  const bool asked = std::any_of(w0.received.begin(), w0.received.end(), [&](const auto& message) {
    return message.stop().job() == graceful && message.stop().checkpoint();
  });
  EXPECT_TRUE(asked);
  ASSERT_TRUE(reconciler_->Cancel(forced, true).ok());
  EXPECT_EQ(JobNow(forced).state(), v1::CANCELLED);
  Settle();
  EXPECT_TRUE(w0.ranks.empty());
  EXPECT_EQ(reconciler_->Cancel(forced, true).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(reconciler_->Cancel("nobody-9", true).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ReconcilerTest, ProgressIsKeptAndACheckpointIsStoredAtOnce) {
  AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  v1::Progress& progress = *RankOf("w0", id, 0).mutable_progress();
  progress.set_step(40);
  progress.set_checkpoint_step(40);
  Settle();
  EXPECT_EQ(JobNow(id).progress().step(), 40);
  EXPECT_EQ(store_.GetJob(id)->progress().checkpoint_step(), 40);
  RankOf("w0", id, 0).set_state(v1::RANK_FAILED);
  RankOf("w0", id, 0).set_reason(v1::REASON_RANK_DIED);
  Settle();
  RankOf("w0", id, 0).mutable_progress()->set_step(41);
  Settle();
  EXPECT_EQ(JobNow(id).progress().checkpoint_step(), 40) << "a restarted rank knows none yet";
}

TEST_F(ReconcilerTest, EventsAreNumberedInOrderAcrossRestarts) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  v1::WorkerMessage message;
  message.add_events()->set_job(id);
  message.mutable_events(0)->set_epoch(1);
  message.mutable_events(0)->mutable_step()->set_step(1);
  Say(w0, message);
  Settle();
  StartCoordinator();
  Connect(w0);
  Say(w0, message);
  Settle();
  const auto events = store_.Events(id, 0, 100);
  for (size_t i = 0; i < events->size(); ++i) EXPECT_EQ((*events)[i].sequence(), i + 1);
  EXPECT_TRUE(events->back().has_step());
  EXPECT_EQ(events->front().state().state(), v1::QUEUED);
}

TEST_F(ReconcilerTest, EventsBesideAHeartbeatComeBeforeWhatItReportsAndAreStoredAtOnce) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  w0.SetAll(id, v1::RANK_SUCCEEDED);
  v1::WorkerMessage message = w0.Heartbeat();
  for (int64_t step = 1; step <= 5; ++step) {
    message.add_events()->set_job(id);
    message.mutable_events()->rbegin()->set_epoch(1);
    message.mutable_events()->rbegin()->mutable_step()->set_step(step);
  }
  Say(w0, message);
  const int stored = events_stored_;
  reconciler_->Pass();
  EXPECT_EQ(events_stored_ - stored, 2) << "one wake-up for the five, one for the job's end";
  const auto events = store_.Events(id, 0, 100);
  ASSERT_GE(events->size(), 6u);
  for (int64_t step = 1; step <= 5; ++step) {
    EXPECT_EQ((*events)[events->size() - 7 + static_cast<size_t>(step)].step().step(), step);
  }
  EXPECT_EQ(events->back().state().state(), v1::SUCCEEDED);
}

TEST_F(ReconcilerTest, RanksFindEachOtherAndOldEpochsAreFenced) {
  FakeWorker& w0 = AddWorker("w0", 2);
  const std::string id = Submit(Spec("a", 2));
  v1::WorkerMessage wait;
  wait.mutable_kv_wait()->set_job(id);
  wait.mutable_kv_wait()->set_epoch(1);
  wait.mutable_kv_wait()->set_request(7);
  wait.mutable_kv_wait()->set_rank(1);
  wait.mutable_kv_wait()->set_timeout_ms(1000);
  wait.mutable_kv_wait()->add_keys("address");
  Say(w0, wait);
  v1::WorkerMessage set;
  set.mutable_kv_set()->set_job(id);
  set.mutable_kv_set()->set_epoch(0);
  set.mutable_kv_set()->set_key("address");
  set.mutable_kv_set()->set_value("stale");
  Say(w0, set);
  Settle();
  EXPECT_FALSE(w0.received.back().has_kv_values());
  set.mutable_kv_set()->set_epoch(1);
  set.mutable_kv_set()->set_value("10.0.0.1:99");
  Say(w0, set);
  Settle();
  ASSERT_TRUE(w0.received.back().has_kv_values());
  EXPECT_EQ(w0.received.back().kv_values().values(0), "10.0.0.1:99");
  EXPECT_EQ(w0.received.back().kv_values().rank(), 1);
}

TEST_F(ReconcilerTest, AWorkerSpeaksOnlyOfWhatRunsThere) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  FakeWorker& w1 = AddWorker("w1", 1);
  const auto refused = [&](const v1::WorkerMessage& message) {
    const absl::Status status = reconciler_->WorkerSaid(w1.name(), sessions_[w1.name()], message);
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
    EXPECT_EQ(status.message(),
              absl::StrCat("worker w1 speaks of job ", id, ", of which no rank runs there"));
  };
  v1::WorkerMessage set, wait, step;
  set.mutable_kv_set()->set_job(id);
  set.mutable_kv_set()->set_epoch(1);
  set.mutable_kv_set()->set_key("address");
  refused(set);
  wait.mutable_kv_wait()->set_job(id);
  wait.mutable_kv_wait()->set_epoch(1);
  wait.mutable_kv_wait()->add_keys("address");
  refused(wait);
  step.add_events()->set_job(id);
  step.mutable_events(0)->set_epoch(1);
  step.mutable_events(0)->mutable_step()->set_step(100);
  refused(step);
  // What it reports of the job is not what the job's ranks are.
  v1::WorkerMessage report = w1.Heartbeat();
  v1::RankReport& rank = *report.mutable_heartbeat()->add_ranks();
  rank.set_job(id);
  rank.set_epoch(1);
  rank.set_state(v1::RANK_SUCCEEDED);
  rank.mutable_progress()->set_step(100'000);
  Say(w1, report);
  reconciler_->Pass();
  EXPECT_EQ(JobNow(id).state(), v1::RUNNING);
  EXPECT_EQ(JobNow(id).progress().step(), 0);
  const auto events = store_.Events(id, 0, 100);
  EXPECT_TRUE(std::none_of(events->begin(), events->end(),
                           [](const v1::JobEvent& event) { return event.has_step(); }));
  Say(w0, set);
  v1::WorkerMessage need;
  need.mutable_need_program()->set_sha256("program of stage 0");
  Say(w0, need);
  EXPECT_EQ(w0.received.back().program().error(), "");
  Say(w1, need);
  EXPECT_EQ(w1.received.back().program().error(),
            "the coordinator cannot read it: no job that runs on this worker has it");
}

TEST_F(ReconcilerTest, AJobKnowsWhoSubmittedIt) {
  const auto job =
      reconciler_->Submit(Spec("a"), absl::NotFoundError("no worker"), {.owner = "alice"});
  ASSERT_TRUE(job.ok());
  EXPECT_EQ(job->owner(), "alice");
  StartCoordinator();
  EXPECT_EQ(JobNow(job->id()).owner(), "alice");
}

TEST_F(ReconcilerTest, ProgramsTravelInChunksOfAMebibyte) {
  FakeWorker& w0 = AddWorker("w0", 1);
  std::string bytes(static_cast<size_t>(kProgramChunkBytes) * 2 + 5, 'p');
  PlannedJob planned = *PrepareFake(Spec("a"), *reconciler_->BudgetNow(Spec("a")));
  planned.programs[0].bytes = bytes;
  ASSERT_TRUE(reconciler_->Submit(Spec("a"), planned).ok());
  Settle();
  w0.received.clear();
  v1::WorkerMessage need;
  need.mutable_need_program()->set_sha256(planned.programs[0].sha256);
  Say(w0, need);
  std::string received;
  for (const v1::CoordinatorMessage& message : w0.received) {
    if (!message.has_program()) continue;
    EXPECT_EQ(message.program().offset(), received.size());
    EXPECT_EQ(message.program().total_bytes(), bytes.size());
    received += message.program().data();
  }
  EXPECT_EQ(received, bytes);
}

TEST_F(ReconcilerTest, AProgramThatCannotBeReadIsAnErrorToWhomAskedForIt) {
  FakeWorker& w0 = AddWorker("w0", 1);
  v1::WorkerMessage need;
  need.mutable_need_program()->set_sha256("ab");
  Say(w0, need);
  ASSERT_TRUE(w0.received.back().has_program());
  EXPECT_EQ(w0.received.back().program().sha256(), "ab");
  EXPECT_NE(w0.received.back().program().error(), "");
}

TEST_F(ReconcilerTest, StatsCountJobsByStateAndTheirReasons) {
  AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  Submit(Spec("b"));
  RankOf("w0", id, 0).mutable_progress()->set_arena_bytes(10);
  Settle();
  const ControlStats stats = reconciler_->Stats();
  EXPECT_EQ(stats.jobs.at(v1::RUNNING), 1);
  EXPECT_EQ(stats.jobs.at(v1::QUEUED), 1);
  EXPECT_EQ(stats.pending.at(v1::REASON_WAITING_FOR_DEVICES), 1);
  EXPECT_EQ(stats.nodes.at("ready"), 1);
  ASSERT_EQ(stats.shown.size(), 1u) << "a job that was never placed has no series";
  EXPECT_EQ(stats.shown[0].id, id);
  EXPECT_EQ(stats.shown[0].progress.arena_bytes(), 10);
}

TEST_F(ReconcilerTest, AnEndedJobIsShownForTwoMinutes) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  w0.SetAll(id, v1::RANK_SUCCEEDED);
  Settle();
  ASSERT_EQ(JobNow(id).state(), v1::SUCCEEDED);
  ASSERT_EQ(reconciler_->Stats().shown.size(), 1u);
  EXPECT_FALSE(reconciler_->Stats().shown[0].runs);
  clock_.AdvanceMillis(119'000);
  EXPECT_EQ(reconciler_->Stats().shown.size(), 1u);
  clock_.AdvanceMillis(2'000);
  EXPECT_TRUE(reconciler_->Stats().shown.empty());
}

TEST_F(ReconcilerTest, JobsBeyondAThousandHaveNoSeriesAndAreCounted) {
  AddWorker("w0", kJobsShownMax + 3);
  for (size_t i = 0; i < kJobsShownMax + 3; ++i) {
    const v1::JobSpec spec = Spec(absl::StrCat("a", i));
    ASSERT_TRUE(reconciler_->Submit(spec, PrepareFake(spec, *reconciler_->BudgetNow(spec))).ok());
  }
  const ControlStats stats = reconciler_->Stats();
  EXPECT_EQ(stats.shown.size(), kJobsShownMax);
  EXPECT_EQ(stats.not_shown, 3);
}

TEST_F(ReconcilerTest, TheNewestConnectionOfANameIsTheValidOne) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const uint64_t old_session = sessions_["w0"];
  Connect(w0);
  EXPECT_EQ(reconciler_->WorkerSaid("w0", old_session, w0.Heartbeat()).code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace terrace
