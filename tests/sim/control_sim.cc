// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/control_sim.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "coordinator/life/job_state.h"

namespace terrace {
namespace {

constexpr int kJobsMax = 5;
const QueueOptions kQueue = {
    .preempt_priority = 2, .preempt_exempt_seconds = 1, .grow_after_seconds = 2};
// By when every job ends once nothing goes wrong any more.
constexpr int64_t kHealedMsMax = 600'000;
constexpr int64_t kHealedRoundMs = 500;

PlannedJob PlanOf(const v1::JobSpec& spec, const Budget& budget) {
  PlannedJob planned;
  planned.plan.mutable_time()->set_step_seconds(SimWorker::kStepSeconds);
  v1::Layout& layout = *planned.plan.mutable_layout();
  layout.set_ranks(budget.ranks);
  layout.set_nodes(budget.nodes);
  layout.set_threads_per_rank(budget.threads_per_rank);
  layout.set_tensor_parallel(1);
  layout.set_pipeline_parallel(1);
  layout.set_data_parallel(budget.ranks);
  planned.plan.add_program_sha256(spec.name());
  planned.programs.push_back({.sha256 = spec.name(), .bytes = "program"});
  return planned;
}

}  // namespace

ControlSim::ControlSim(uint64_t seed, const Options& options) : options_(options), random_(seed) {
  for (int i = 0; i < kSimWorkers; ++i)
    links_.push_back(
        {.worker = std::make_unique<SimWorker>(absl::StrCat("w", i), kSimDevicesEach)});
  store_.watch = [this](const Transaction& transaction) {
    for (const v1::Job& job : transaction.jobs) CheckPlaced(job);
  };
  Boot();
}

ControlSim::~ControlSim() = default;

std::string ControlSim::Run() {
  for (; step_ < options_.steps && failure_.empty(); ++step_) Step();
  if (failure_.empty()) Heal();
  return failure_;
}

// Whatever runs code of the coordinator may die at a commit.
void ControlSim::Step() {
  try {
    Happen(Below(100));
  } catch (const Crashed&) {
    Crash();
  }
  CheckAll();
}

void ControlSim::Happen(int what) {
  if (what < 8) return Submit();
  if (what < 16) return AskAboutAJob();
  if (what < 40) return PassTime();
  if (what < 58) return Turn(AnyLink());
  if (what < 78) return Deliver(AnyLink());
  if (what < 84) return Disturb(AnyLink());
  if (what < 88) return HurtMachine(AnyLink());
  if (what < 91) {
    Link& link = AnyLink();
    if (link.session == 0) return Connect(link);
    link.cut_until_ns = clock_.MonotonicNanos() + Below(8'000) * int64_t{1'000'000};
    return Tell(absl::StrCat("the way to ", link.worker->name(), " is cut"));
  }
  if (what < 94) {
    loses_power_ = Chance(50);
    store_.CrashAt(static_cast<size_t>(Below(4)), Chance(50));
    return Tell("the coordinator is to die at a commit");
  }
  if (what < 96) {
    loses_power_ = Chance(50);
    return Crash();
  }
  if (what < 97) {
    store_.full = !store_.full;
    return Tell(store_.full ? "the disk is full" : "the disk has room");
  }
  RunPlans();
}

// ---- clients ----------------------------------------------------------------------------------

v1::JobSpec ControlSim::AnySpec() {
  v1::JobSpec spec;
  spec.set_name("sim");
  spec.set_max_restarts(3);
  spec.set_priority(Below(2) * 3);
  spec.mutable_train()->set_steps(2 + Below(8));
  v1::ResourceSpec& resources = *spec.mutable_resources();
  resources.set_nodes_min(1 + static_cast<uint32_t>(Below(2)));
  resources.set_nodes_max(resources.nodes_min() + static_cast<uint32_t>(Below(2)));
  resources.set_devices_per_node(1 + static_cast<uint32_t>(Below(kSimDevicesEach)));
  return spec;
}

void ControlSim::Submit() {
  if (static_cast<int>(ids_.size()) >= kJobsMax) return;
  std::vector<SubmittedJob> jobs;
  const int together = 1 + Below(2);
  for (int i = 0; i < together; ++i) {
    SubmittedJob job{.spec = AnySpec(), .planned = absl::StatusOr<PlannedJob>(), .as = {}};
    const absl::StatusOr<Budget> budget = reconciler_->BudgetNow(job.spec);
    job.planned = budget.ok() ? absl::StatusOr<PlannedJob>(PlanOf(job.spec, *budget))
                              : absl::StatusOr<PlannedJob>(budget.status());
    job.as.held = Chance(10);
    jobs.push_back(std::move(job));
  }
  const std::vector<absl::StatusOr<std::string>> ids = reconciler_->SubmitAll(jobs);
  for (const absl::StatusOr<std::string>& id : ids) {
    Tell(absl::StrCat("submitted: ", id.ok() ? *id : std::string(id.status().message())));
    if (!id.ok()) continue;
    ++counts_.submitted;
    ids_.push_back(*id);
    told_[*id];
  }
  reconciler_->Pass();
}

void ControlSim::AskAboutAJob() {
  if (ids_.empty()) return;
  const std::string id = ids_[static_cast<size_t>(Below(static_cast<int>(ids_.size())))];
  const int what = Below(6);
  const bool force = Chance(40);
  Tell(absl::StrCat("a client asks ", what, " of ", id));
  const absl::StatusOr<v1::Job> job = what == 0   ? reconciler_->Cancel(id, force)
                                      : what == 1 ? reconciler_->Pause(id, force)
                                      : what == 2 ? reconciler_->Resume(id)
                                      : what == 3 ? reconciler_->Requeue(id, force)
                                                  : reconciler_->Get(id);
  if (absl::IsNotFound(job.status())) Fail(absl::StrCat("job ", id, " is not known any more"));
  if (job.ok()) NoteTold(*job);
}

// Until it is taken back, whatever dies meanwhile.
void ControlSim::Drain(const std::string& worker) {
  if (drained_.erase(worker) > 0) {
    Tell(absl::StrCat(worker, " is taken back into use"));
    return reconciler_->Undrain(worker, "an operator").IgnoreError();
  }
  v1::DrainRequest request;
  request.set_node(worker);
  request.set_keep_jobs(Chance(20));
  if (Chance(70)) request.set_deadline_ms(Below(2) * int64_t{4'000});
  Tell(absl::StrCat(worker, " is drained"));
  if (reconciler_->Drain(request, "an operator").ok()) drained_.insert(worker);
}

void ControlSim::NoteTold(const v1::Job& job) {
  Known& known = told_[job.id()];
  known.epoch = std::max(known.epoch, job.epoch());
  if (HasEnded(job.state())) known.ended = job.state();
}

// ---- time -------------------------------------------------------------------------------------

void ControlSim::PassTime() {
  const int kind = Below(20);
  const int64_t ms = kind < 14 ? Below(400) : kind < 19 ? Below(4'000) : Below(30'000);
  clock_.AdvanceMillis(ms);
  if (Chance(5)) clock_.JumpMillis((Below(2) == 0 ? -1 : 1) * int64_t{Below(86'400'000)});
  Tell(absl::StrCat(ms, " ms pass"));
  reconciler_->Pass();
}

// ---- the coordinator --------------------------------------------------------------------------

void ControlSim::Boot() {
  for (Link& link : links_) {
    Disconnect(link);
    link.reported.clear();
  }
  plans_.clear();
  reconciler_ = std::make_unique<Reconciler>(Reconciler::Timing{}, store_, clock_, *this, kQueue);
  // A store that dies while it is read back is read again.
  try {
    if (const absl::Status loaded = reconciler_->Load(); !loaded.ok())
      Fail(absl::StrCat("the jobs cannot be read back: ", loaded.message()));
  } catch (const Crashed&) {
    store_.CrashNever();
    Boot();
  }
}

void ControlSim::Crash() {
  ++counts_.crashes;
  store_.CrashNever();
  if (loses_power_) {
    ++counts_.power_losses;
    store_.LosePower(static_cast<size_t>(Below(3)));
  }
  store_.full = false;
  Tell(loses_power_ ? "the coordinator's machine loses power" : "the coordinator dies");
  reconciler_ = nullptr;
  clock_.AdvanceMillis(Below(3'000));
  Boot();
}

void ControlSim::RunPlans() {
  for (auto& plan : std::exchange(plans_, {})) plan();
}

void ControlSim::Plan(const v1::JobSpec& spec, const Budget& budget, std::weak_ptr<void>,
                      PlanDone done) {
  plans_.push_back([spec, budget, done] { done(PlanOf(spec, budget)); });
}

void ControlSim::Descend(const v1::JobSpec&, const Budget&, const v1::Plan&, std::weak_ptr<void>,
                         DescendDone done) {
  plans_.push_back([done] { done(absl::ResourceExhaustedError("nothing smaller fits")); });
}

// ---- the end ----------------------------------------------------------------------------------

void ControlSim::Heal() {
  store_.CrashNever();
  store_.full = false;
  for (Link& link : links_) {
    link.cut_until_ns = 0;
    drained_.erase(link.worker->name());
    reconciler_->Undrain(link.worker->name(), "an operator").IgnoreError();
  }
  for (int64_t ms = 0; ms < kHealedMsMax && failure_.empty(); ms += kHealedRoundMs) {
    HealedRound();
    CheckAll();
    if (!store_.ListActiveJobs()->empty()) continue;
    for (const std::string& id : ids_)
      counts_.succeeded += reconciler_->Get(id)->state() == v1::SUCCEEDED;
    for (int i = 0; i < 4; ++i) HealedRound();
    for (const Link& link : links_) {
      if (!link.worker->ranks().empty())
        Fail(absl::StrCat("ranks are left on ", link.worker->name(), " when all jobs have ended"));
    }
    return;
  }
  const std::vector<v1::Job> left = *store_.ListActiveJobs();
  for (const v1::Job& job : left) {
    Fail(absl::StrCat("job ", job.id(), " does not end although nothing goes wrong any more: ",
                      v1::JobState_Name(job.state()), ", ", job.message()));
  }
}

void ControlSim::HealedRound() {
  clock_.AdvanceMillis(kHealedRoundMs);
  for (Link& link : links_) {
    if (link.session == 0) Connect(link);
    Turn(link);
    while (link.session != 0 && !(link.up.empty() && link.down.empty())) Deliver(link);
    link.late.clear();
  }
  const std::vector<v1::Job> jobs = *reconciler_->List(/*all=*/false);
  for (const v1::Job& job : jobs) {  // also those whose answers were lost
    if (job.state() == v1::PAUSED) reconciler_->Resume(job.id()).IgnoreError();
  }
  reconciler_->Pass();
  RunPlans();
}

void ControlSim::Fail(const std::string& what) {
  if (failure_.empty()) failure_ = absl::StrCat("step ", step_, ": ", what);
}

void ControlSim::Tell(const std::string& what) {
  if (options_.tells) std::fprintf(stderr, "%4d  %s\n", step_, what.c_str());
}

}  // namespace terrace
