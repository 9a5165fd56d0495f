// A coordinator and its workers in one thread, with a clock, a store and workers that tests turn.
//
// Used by one thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/jobs/reconciler.h"
#include "tests/support/failing_store.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_worker.h"

namespace terrace {

// Messages are delivered by Settle(), as often as there are any.
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
  void Plan(const v1::JobSpec& spec, const Budget& budget, std::weak_ptr<void> wanted,
            PlanDone done) override {
    wanted_ = std::move(wanted);
    plans_.push_back([this, spec, budget, done] {
      if (plan_failures_.empty()) return done(PrepareFake(spec, budget));
      const absl::Status failure = plan_failures_.front();
      plan_failures_.pop_front();
      done(failure);
    });
  }
  void Descend(const v1::JobSpec& spec, const Budget& budget, const v1::Plan& plan,
               std::weak_ptr<void>, DescendDone done) override {
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
      DescendedJob descended{.rung = "micro_batch", .change = "a smaller micro-batch"};
      descended.planned = *PrepareFake(spec, budget);
      descended.planned.plan.mutable_layout()->set_micro_batch(plan.layout().micro_batch() / 2);
      descended.planned.plan.set_program_sha256(0, "smaller program");
      done(std::move(descended));
    });
  }
  void EventsStored(std::string_view) override { ++events_stored_; }

  static absl::StatusOr<PlannedJob> PrepareFake(const v1::JobSpec& spec, const Budget& budget) {
    if (spec.train().global_batch() > 1000) return absl::ResourceExhaustedError("too big");
    PlannedJob planned;
    const bool elastic = spec.resources().nodes_max() > spec.resources().nodes_min();
    planned.plan.mutable_time()->set_step_seconds(kPlannedSeconds / (elastic ? budget.nodes : 1));
    planned.plan.mutable_profile()->set_measured(true);
    v1::Layout& layout = *planned.plan.mutable_layout();
    layout.set_ranks(budget.ranks);
    layout.set_nodes(budget.nodes);
    layout.set_device(spec.resources().device());
    layout.set_threads_per_rank(budget.threads_per_rank);
    layout.set_micro_batch(4);
    layout.set_moments_format(spec.formats().allow().moments());
    layout.set_tensor_parallel(std::max<uint32_t>(1, spec.layout().tp()));
    layout.set_pipeline_parallel(std::max<uint32_t>(1, spec.layout().pp()));
    layout.set_data_parallel(layout.ranks() /
                             (layout.tensor_parallel() * layout.pipeline_parallel()));
    for (uint32_t stage = 0; stage < layout.pipeline_parallel(); ++stage) {
      const std::string program = absl::StrCat("program of stage ", stage);
      planned.programs.push_back({.sha256 = program, .bytes = absl::StrCat(spec.name(), program)});
      planned.plan.add_program_sha256(program);
    }
    return planned;
  }

  static constexpr double kPlannedSeconds = 1;  // of a step

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
    const auto job =
        reconciler_->Submit(spec, budget.ok() ? PrepareFake(spec, *budget)
                                              : absl::StatusOr<PlannedJob>(budget.status()));
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
  std::weak_ptr<void> wanted_;   // the last plan
  std::deque<std::function<void()>> plans_;
  std::deque<absl::Status> plan_failures_;  // of the next plans
  std::unique_ptr<Reconciler> reconciler_;
};

}  // namespace terrace
