// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/small_cluster.h"

#include "tests/fuzz/judge.h"

namespace terrace {
namespace {

PlannedJob OneRank() {
  PlannedJob planned;
  planned.plan.mutable_time()->set_step_seconds(1);
  v1::Layout& layout = *planned.plan.mutable_layout();
  layout.set_ranks(1);
  layout.set_nodes(1);
  layout.set_threads_per_rank(1);
  layout.set_micro_batch(1);
  layout.set_data_parallel(1);
  layout.set_tensor_parallel(1);
  layout.set_pipeline_parallel(1);
  planned.plan.add_program_sha256("program");
  planned.programs.push_back({.sha256 = "program", .bytes = "bytes"});
  return planned;
}

v1::JobSpec SmallJob() {
  v1::JobSpec spec;
  spec.set_name("job");
  spec.set_max_restarts(2);
  spec.mutable_train()->set_steps(100);
  spec.mutable_resources()->set_devices_per_node(1);
  spec.mutable_resources()->set_nodes_min(1);
  spec.mutable_resources()->set_nodes_max(1);
  return spec;
}

}  // namespace

SmallCluster::SmallCluster() {
  reconciler_ = std::make_unique<Reconciler>(Reconciler::Timing{}, store_, clock_, *this);
  FuzzRequire(reconciler_->Load().ok(), "an empty store is read", "");
  FuzzRequire(reconciler_->WorkerRegistered(victim_.node(), kVictim).ok(), "a worker is let in",
              "");
  victims_job_ = RunJob(&victim_);
  FuzzRequire(reconciler_->WorkerRegistered(hostile_.node(), kHostile).ok(), "so is another", "");
  hostiles_job_ = RunJob(&hostile_);
}

std::string SmallCluster::RunJob(FakeWorker* on) {
  const uint64_t session = on == &victim_ ? kVictim : kHostile;
  const auto say = [&] {
    FuzzRequire(reconciler_->WorkerSaid(on->name(), session, on->Heartbeat()).ok(),
                "an honest heartbeat is heard", on->name());
    Pass(0);
  };
  say();
  const auto job = reconciler_->Submit(SmallJob(), OneRank(), {.owner = "alice"});
  FuzzRequire(job.ok(), "a job is taken", "");
  Pass(0);
  on->SetAll(job->id(), v1::RANK_READY);
  say();
  say();
  FuzzRequire(reconciler_->Get(job->id())->state() == v1::RUNNING, "a job runs", job->id());
  return job->id();
}

absl::Status SmallCluster::HostileSays(const v1::WorkerMessage& message) {
  if (message.has_register_()) {
    // A certificate names the worker, so that it registers under no other name.
    v1::Node node = message.register_().node();
    if (node.name() == victim_.name()) node.set_name(hostile_.name());
    return reconciler_->WorkerRegistered(node, kHostile);
  }
  return reconciler_->WorkerSaid(hostile_.name(), kHostile, message);
}

void SmallCluster::RequireVictimIsWell() {
  FuzzRequire(reconciler_->WorkerSaid(victim_.name(), kVictim, victim_.Heartbeat()).ok(),
              "an honest worker stays connected", "");
  Pass(0);
  const absl::StatusOr<v1::Job> job = reconciler_->Get(victims_job_);
  FuzzRequire(job.ok() && job->state() == v1::RUNNING && job->restarts() == 0 && job->epoch() == 1,
              "nobody else's job is touched", victims_job_);
}

void SmallCluster::Pass(int64_t ms) {
  clock_.AdvanceMillis(ms);
  reconciler_->Pass();
}

void SmallCluster::Send(std::string_view worker, const v1::CoordinatorMessage& message) {
  if (worker == victim_.name()) victim_.Handle(message);
  if (worker == hostile_.name()) hostile_.Handle(message);
}

}  // namespace terrace
