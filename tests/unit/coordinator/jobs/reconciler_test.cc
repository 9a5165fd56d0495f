// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/reconciler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>

#include "absl/strings/str_cat.h"
#include "tests/support/failing_store.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_worker.h"

namespace terrace {
namespace {

using testing::HasSubstr;

// A coordinator and its workers in one thread. Messages are delivered by Settle(), as often as
// there are any.
class ReconcilerTest : public testing::Test, public ControlPorts {
 protected:
  void SetUp() override { StartCoordinator(); }

  void StartCoordinator() {
    sessions_.clear();
    plans_.clear();
    reconciler_ = std::make_unique<Reconciler>(Reconciler::Timing{}, store_, clock_, *this);
    ASSERT_TRUE(reconciler_->Load().ok());
  }

  FakeWorker& AddWorker(const std::string& name, uint32_t devices) {
    auto worker = std::make_unique<FakeWorker>(name, devices);
    FakeWorker& added = *worker;
    workers_[name] = std::move(worker);
    Connect(added);
    return added;
  }
  void Connect(FakeWorker& worker) {
    sessions_[worker.name()] = ++last_session_;
    EXPECT_TRUE(reconciler_->WorkerRegistered(worker.node(), last_session_).ok());
    Settle();
  }
  void Disconnect(FakeWorker& worker) {
    reconciler_->WorkerGone(worker.name(), sessions_[worker.name()]);
    sessions_.erase(worker.name());
  }

  // Heartbeats, passes and plans until nothing moves any more.
  void Settle() {
    for (int round = 0; round < 5; ++round) {
      for (auto& [name, worker] : workers_) {
        if (sessions_.contains(name)) Say(*worker, worker->Heartbeat());
      }
      reconciler_->Pass();
      while (!plans_.empty()) {
        auto plan = std::move(plans_.front());
        plans_.pop_front();
        plan();
      }
    }
  }
  void Say(FakeWorker& worker, const v1::WorkerMessage& message) {
    EXPECT_TRUE(reconciler_->WorkerSaid(worker.name(), sessions_[worker.name()], message).ok());
  }
  void Pass(int64_t ms) {
    for (; ms > 0; ms -= 200) {
      clock_.AdvanceMillis(200);
      Settle();
    }
  }

  // ControlPorts.
  void Send(std::string_view worker, const v1::CoordinatorMessage& message) override {
    if (sessions_.contains(std::string(worker))) {
      workers_[std::string(worker)]->Handle(message);
    }
  }
  void Plan(const v1::JobSpec& spec, const Budget& budget, PlanDone done) override {
    plans_.push_back([this, spec, budget, done] { done(PrepareFake(spec, budget)); });
  }
  void Descend(const v1::JobSpec& spec, const Budget& budget, const v1::Plan& plan,
               DescendDone done) override {
    ++descents_;
    budgets_.push_back(budget);
    plans_.push_back([this, spec, budget, plan, done] {
      if (descents_lost_ > 0) {
        --descents_lost_;
        return;  // its coordinator dies first
      }
      if (plan.layout().micro_batch() == 1) {
        return done(absl::ResourceExhaustedError("nothing smaller fits"));
      }
      Descent descent{.rung = "micro_batch", .change = "a smaller micro-batch"};
      descent.prepared = *PrepareFake(spec, budget);
      descent.prepared.plan.mutable_layout()->set_micro_batch(plan.layout().micro_batch() / 2);
      descent.prepared.plan.set_program_sha256(0, "smaller program");
      done(std::move(descent));
    });
  }
  void EventsStored(std::string_view) override { ++events_stored_; }

  static absl::StatusOr<Prepared> PrepareFake(const v1::JobSpec& spec, const Budget& budget) {
    if (spec.train().global_batch() > 1000) return absl::ResourceExhaustedError("too big");
    Prepared prepared;
    v1::Layout& layout = *prepared.plan.mutable_layout();
    layout.set_ranks(budget.ranks);
    layout.set_nodes(budget.nodes);
    layout.set_threads_per_rank(budget.threads_per_rank);
    layout.set_micro_batch(4);
    layout.set_tensor_parallel(std::max<uint32_t>(1, spec.layout().tp()));
    layout.set_pipeline_parallel(std::max<uint32_t>(1, spec.layout().pp()));
    layout.set_data_parallel(layout.ranks() /
                             (layout.tensor_parallel() * layout.pipeline_parallel()));
    for (uint32_t stage = 0; stage < layout.pipeline_parallel(); ++stage) {
      prepared.programs.emplace_back().set_job(spec.name());
      prepared.programs.back().set_stage(stage);
      prepared.plan.add_program_sha256(absl::StrCat("program of stage ", stage));
    }
    return prepared;
  }

  static v1::JobSpec Spec(const std::string& name, uint32_t devices = 1, uint32_t nodes = 1) {
    v1::JobSpec spec;
    spec.set_name(name);
    spec.set_max_restarts(2);
    spec.mutable_train()->set_steps(100);
    spec.mutable_resources()->set_devices_per_node(devices);
    spec.mutable_resources()->set_nodes_min(nodes);
    spec.mutable_resources()->set_nodes_max(nodes);
    return spec;
  }
  std::string Submit(const v1::JobSpec& spec) {
    const auto budget = reconciler_->BudgetNow(spec);
    const auto job = reconciler_->Submit(
        spec, budget.ok() ? PrepareFake(spec, *budget) : absl::StatusOr<Prepared>(budget.status()));
    EXPECT_TRUE(job.ok()) << job.status();
    Settle();
    return job.ok() ? job->id() : "";
  }
  void Ready(const std::string& job) {
    for (auto& [name, worker] : workers_) worker->SetAll(job, v1::RANK_READY);
    Settle();
  }
  std::string RunningJob(const v1::JobSpec& spec) {
    const std::string id = Submit(spec);
    Ready(id);
    EXPECT_EQ(JobNow(id).state(), v1::RUNNING);
    return id;
  }
  void RunOut(const std::string& worker, const std::string& job, uint32_t rank,
              int64_t external_mib) {
    v1::RankReport& report = RankOf(worker, job, rank);
    report.set_state(v1::RANK_FAILED);
    report.set_reason(v1::REASON_OUT_OF_MEMORY);
    report.set_message("held too much");
    report.mutable_memory()->set_external_bytes(external_mib << 20);
    report.mutable_memory()->set_external_allowed_bytes(96 << 20);
  }
  v1::Job JobNow(const std::string& id) { return *reconciler_->Get(id); }
  v1::RankReport& RankOf(const std::string& worker, const std::string& job, uint32_t rank) {
    return workers_[worker]->ranks[{job, rank}];
  }

  FakeClock clock_;
  FailingStore store_;
  std::map<std::string, std::unique_ptr<FakeWorker>> workers_;
  std::map<std::string, uint64_t> sessions_;
  uint64_t last_session_ = 0;
  int events_stored_ = 0;
  int descents_ = 0;
  int descents_lost_ = 0;        // the next ones are never finished
  std::vector<Budget> budgets_;  // of descents
  std::deque<std::function<void()>> plans_;
  std::unique_ptr<Reconciler> reconciler_;
};

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

TEST_F(ReconcilerTest, AJobSubmittedBeforeAnyWorkerWaitsAndIsPlannedWhenOneComes) {
  const std::string id = Submit(Spec("a"));
  EXPECT_EQ(JobNow(id).state(), v1::QUEUED);
  EXPECT_EQ(JobNow(id).reason(), v1::REASON_NO_MATCHING_WORKER);
  EXPECT_THAT(JobNow(id).message(), HasSubstr("no worker is registered"));
  AddWorker("w0", 1);
  EXPECT_EQ(JobNow(id).state(), v1::STARTING);
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

TEST_F(ReconcilerTest, ADeadRankRestartsTheWholeGangInANewEpoch) {
  FakeWorker& w0 = AddWorker("w0", 2);
  const std::string id = RunningJob(Spec("a", 2));
  v1::RankReport& dead = RankOf("w0", id, 1);
  dead.set_state(v1::RANK_FAILED);
  dead.set_reason(v1::REASON_RANK_DIED);
  dead.set_message("killed by signal 9");
  Settle();
  EXPECT_EQ(JobNow(id).state(), v1::STARTING);
  EXPECT_EQ(JobNow(id).epoch(), 2);
  EXPECT_EQ(JobNow(id).restarts(), 1);
  EXPECT_EQ(RankOf("w0", id, 0).epoch(), 2) << "the surviving rank was stopped too";
  EXPECT_EQ(w0.CountStarts(), 2);
  Ready(id);
  EXPECT_EQ(JobNow(id).state(), v1::RUNNING);
}

TEST_F(ReconcilerTest, ASilentWorkerIsLostAfterThreeSecondsAndItsJobMovesOn) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  ASSERT_EQ(JobNow(id).placement().ranks(0).worker(), "w0");
  AddWorker("w1", 1);
  Disconnect(w0);
  Pass(2800);
  EXPECT_EQ(JobNow(id).state(), v1::RUNNING) << "its ranks go on; it may come back";
  Pass(600);
  EXPECT_EQ(JobNow(id).placement().ranks(0).worker(), "w1");
  EXPECT_EQ(JobNow(id).epoch(), 2);
  // The lost worker returns with the rank of the old epoch.
  Connect(w0);
  EXPECT_TRUE(w0.ranks.empty()) << "fenced";
  EXPECT_EQ(JobNow(id).epoch(), 2);
}

TEST_F(ReconcilerTest, AWorkerThatReconnectsInTimeKeepsItsJobRunning) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  Disconnect(w0);
  Pass(2000);
  Connect(w0);
  Pass(5000);
  EXPECT_EQ(JobNow(id).state(), v1::RUNNING);
  EXPECT_EQ(JobNow(id).epoch(), 1);
  EXPECT_EQ(w0.CountStarts(), 1);
}

TEST_F(ReconcilerTest, ARestartedCoordinatorAdoptsWhatRunsOn) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  const std::string waiting = Submit(Spec("b"));
  const size_t commands = w0.received.size();
  StartCoordinator();
  EXPECT_EQ(JobNow(id).state(), v1::RUNNING);
  Pass(5000);
  EXPECT_EQ(JobNow(id).state(), v1::RUNNING) << "within the grace period nobody is lost";
  Connect(w0);
  Pass(1000);
  EXPECT_EQ(JobNow(id).state(), v1::RUNNING);
  EXPECT_EQ(JobNow(id).epoch(), 1);
  EXPECT_EQ(w0.received.size(), commands) << "it was told nothing at all";
  EXPECT_EQ(JobNow(waiting).reason(), v1::REASON_WAITING_FOR_DEVICES);
  EXPECT_EQ(Submit(Spec("c")), "c-3") << "numbers go on";
}

TEST_F(ReconcilerTest, AWorkerThatStaysAwayAfterARestartIsLostAfterTheGracePeriod) {
  AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  StartCoordinator();
  Pass(11'000);
  EXPECT_EQ(JobNow(id).state(), v1::RECOVERING);
}

TEST_F(ReconcilerTest, ACrashBetweenWritingAndActingIsMadeUpFor) {
  FakeWorker& w0 = AddWorker("w0", 1);
  Disconnect(w0);  // so that the start command gets lost
  sessions_["w0"] = ++last_session_;
  ASSERT_TRUE(reconciler_->WorkerRegistered(w0.node(), last_session_).ok());
  const std::string id = Submit(Spec("a"));
  w0.ranks.clear();
  StartCoordinator();
  EXPECT_EQ(JobNow(id).state(), v1::STARTING);
  Connect(w0);
  EXPECT_EQ(w0.ranks.size(), 1) << "the command was given again";
}

TEST_F(ReconcilerTest, WhatCannotBeStoredIsNotDone) {
  FakeWorker& w0 = AddWorker("w0", 1);
  store_.full = true;
  EXPECT_EQ(reconciler_->Submit(Spec("a"), PrepareFake(Spec("a"), {})).status().code(),
            absl::StatusCode::kResourceExhausted);
  store_.full = false;
  const std::string blocker = RunningJob(Spec("a"));
  const std::string id = Submit(Spec("b"));
  store_.full = true;
  w0.SetAll(blocker, v1::RANK_SUCCEEDED);
  Pass(2000);
  EXPECT_EQ(w0.CountStarts(), 1) << "job b must not start before that is stored";
  EXPECT_EQ(JobNow(blocker).state(), v1::RUNNING);
  store_.full = false;
  Pass(400);
  EXPECT_EQ(JobNow(blocker).state(), v1::SUCCEEDED);
  EXPECT_EQ(JobNow(id).state(), v1::STARTING);
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
  message.mutable_event()->set_job(id);
  message.mutable_event()->mutable_step()->set_step(1);
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

TEST_F(ReconcilerTest, ProgramsTravelInChunksOfAMebibyte) {
  FakeWorker& w0 = AddWorker("w0", 1);
  std::string bytes(static_cast<size_t>(kProgramChunkBytes) * 2 + 5, 'p');
  ASSERT_TRUE(store_.Commit({.programs = {{.sha256 = "ab", .bytes = bytes}}}).ok());
  v1::WorkerMessage need;
  need.mutable_need_program()->set_sha256("ab");
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

TEST_F(ReconcilerTest, StatsCountJobsByStateAndTheirReasons) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  Submit(Spec("b"));
  RankOf("w0", id, 0).mutable_progress()->set_arena_bytes(10);
  Settle();
  const ControlStats stats = reconciler_->Stats();
  EXPECT_EQ(stats.jobs.at(v1::RUNNING), 1);
  EXPECT_EQ(stats.jobs.at(v1::QUEUED), 1);
  EXPECT_EQ(stats.pending.at(v1::REASON_WAITING_FOR_DEVICES), 1);
  EXPECT_EQ(stats.nodes.at("ready"), 1);
  EXPECT_EQ(stats.plan_memory_error_bytes.at(id), 10);
  w0.SetAll(id, v1::RANK_SUCCEEDED);
  Settle();
  EXPECT_FALSE(reconciler_->Stats().plan_memory_error_bytes.contains(id));
}

TEST_F(ReconcilerTest, TheNewestConnectionOfANameIsTheValidOne) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const uint64_t old_session = sessions_["w0"];
  Connect(w0);
  EXPECT_EQ(reconciler_->WorkerSaid("w0", old_session, w0.Heartbeat()).code(),
            absl::StatusCode::kFailedPrecondition);
}

// ---- memory that ran out ----------------------------------------------------------------------

TEST_F(ReconcilerTest, AJobThatRanOutGoesOnWithASmallerLayoutAndItsPrograms) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  RankOf("w0", id, 0).mutable_progress()->set_checkpoint_step(7);
  RunOut("w0", id, 0, 112);
  Pass(1200);
  v1::Job job = JobNow(id);
  EXPECT_EQ(job.state(), v1::STARTING);
  EXPECT_EQ(job.epoch(), 2);
  EXPECT_EQ(job.learned_external_bytes(), int64_t{128} << 20);
  ASSERT_EQ(job.adjustments_size(), 1);
  EXPECT_EQ(job.adjustments(0).step(), 7);
  EXPECT_EQ(job.adjustments(0).layout().micro_batch(), 2u);
  EXPECT_EQ(w0.received.back().start().ranks(0).program_sha256(), "smaller program");
  ASSERT_EQ(budgets_.size(), 1u);
  EXPECT_EQ(budgets_[0].external_bytes, int64_t{128} << 20) << "it is planned with";
  EXPECT_EQ(reconciler_->Stats().adjustments.at("micro_batch"), 1);
  EXPECT_EQ(reconciler_->Stats().restarts.at(v1::REASON_OUT_OF_MEMORY), 1);
  bool told = false;
  const auto events = store_.Events(id, 0, 100);
  for (const v1::JobEvent& event : *events) {
    told |= event.state().message().find("with a smaller micro-batch") != std::string::npos;
  }
  EXPECT_TRUE(told) << "whoever watches sees it";
}

TEST_F(ReconcilerTest, TheLadderEndsAndIsNotHeldAgainstMaxRestarts) {
  AddWorker("w0", 1);
  v1::JobSpec spec = Spec("a");
  spec.set_max_restarts(0);
  const std::string id = RunningJob(spec);
  for (int rung = 0; rung < 2; ++rung) {
    RunOut("w0", id, 0, 112 + rung);
    Pass(1200);
    Ready(id);
    ASSERT_EQ(JobNow(id).state(), v1::RUNNING) << rung;
  }
  RunOut("w0", id, 0, 200);
  Pass(1200);
  const v1::Job job = *store_.GetJob(id);
  EXPECT_EQ(job.state(), v1::FAILED);
  EXPECT_EQ(job.reason(), v1::REASON_OUT_OF_MEMORY);
  EXPECT_THAT(job.message(), HasSubstr("held too much; nothing smaller fits"));
  EXPECT_EQ(job.adjustments_size(), 2);
}

// Whatever the moment of its death, the next coordinator goes on from what was stored.
TEST_F(ReconcilerTest, ACoordinatorThatDiesOnTheWayDownGoesOnAfterItsRestart) {
  FakeWorker& w0 = AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  descents_lost_ = 1;
  RunOut("w0", id, 0, 112);
  Pass(1200);
  EXPECT_TRUE(NeedsSmallerLayout(*store_.GetJob(id))) << "stored before it is acted on";
  EXPECT_EQ(descents_, 1);
  StartCoordinator();
  Settle();
  EXPECT_EQ(JobNow(id).state(), v1::RECOVERING) << "its worker is away";
  Connect(w0);
  Pass(1200);
  EXPECT_EQ(JobNow(id).state(), v1::STARTING);
  EXPECT_EQ(JobNow(id).adjustments_size(), 1);
  EXPECT_EQ(descents_, 2);
  // And between the new layout and its start.
  StartCoordinator();
  Connect(w0);
  Pass(400);
  Ready(id);
  EXPECT_EQ(JobNow(id).state(), v1::RUNNING);
  EXPECT_EQ(JobNow(id).epoch(), 2);
  EXPECT_EQ(JobNow(id).plan().layout().micro_batch(), 2u);
  EXPECT_EQ(descents_, 2);
}

TEST_F(ReconcilerTest, WhenNothingCanBeStoredTheWayDownIsTriedAgain) {
  AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  RunOut("w0", id, 0, 112);
  store_.full = true;
  Pass(1200);
  EXPECT_EQ(descents_, 0) << "what is not stored is not done";
  EXPECT_EQ(JobNow(id).state(), v1::RUNNING);
  store_.full = false;
  Pass(1200);
  EXPECT_EQ(JobNow(id).state(), v1::STARTING);
  EXPECT_EQ(JobNow(id).adjustments_size(), 1);
}

TEST_F(ReconcilerTest, TheOldRanksEndBeforeASmallerLayoutIsSought) {
  FakeWorker& w0 = AddWorker("w0", 1);
  AddWorker("w1", 1);
  const std::string id = RunningJob(Spec("a", 1, 2));
  RunOut("w1", id, 1, 112);
  const auto report = w0.ranks.begin()->second;
  Disconnect(*workers_["w0"]);  // its rank is not heard of, nor killed
  Pass(1000);
  EXPECT_EQ(descents_, 0);
  Connect(w0);
  Pass(1200);
  EXPECT_EQ(descents_, 1);
  EXPECT_EQ(report.epoch(), 1);
}

TEST_F(ReconcilerTest, LaterJobsOfThatShapeArePlannedOnThatWorkerWithWhatWasLearned) {
  AddWorker("w0", 1);
  v1::JobSpec spec = Spec("a");
  spec.mutable_model()->set_config_json("{}");
  const std::string id = RunningJob(spec);
  RunOut("w0", id, 0, 112);
  Pass(1200);
  StartCoordinator();
  Connect(*workers_["w0"]);
  v1::JobSpec later = spec;
  later.set_name("b");
  later.mutable_train()->set_seed(17);
  EXPECT_EQ(reconciler_->BudgetNow(later)->external_bytes, int64_t{128} << 20)
      << "after a restart too";
  later.mutable_model()->set_config_json("{ }");
  EXPECT_EQ(reconciler_->BudgetNow(later)->external_bytes, 0) << "another shape";
  AddWorker("w1", 2);
  EXPECT_EQ(reconciler_->BudgetNow(Spec("c", 2))->external_bytes, 0) << "another worker";
}

TEST_F(ReconcilerTest, AJobCancelledOnTheWayDownStaysCancelled) {
  AddWorker("w0", 1);
  const std::string id = RunningJob(Spec("a"));
  RunOut("w0", id, 0, 112);
  auto heard = workers_["w0"]->Heartbeat();
  Say(*workers_["w0"], heard);
  reconciler_->Pass();
  ASSERT_TRUE(NeedsSmallerLayout(JobNow(id)));
  ASSERT_TRUE(reconciler_->Cancel(id, false).ok());
  Pass(1200);
  EXPECT_EQ(store_.GetJob(id)->state(), v1::CANCELLED);
}

}  // namespace
}  // namespace terrace
