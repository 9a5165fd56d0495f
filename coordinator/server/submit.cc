// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/submit.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/prepare/explain.h"
#include "coordinator/server/inputs.h"
#include "proto/program_hash.h"

namespace terrace {
namespace {

using PreparedDone =
    std::function<void(const v1::JobSpec& spec, bool placeable, absl::StatusOr<Prepared>)>;

absl::Status Busy() {
  return absl::ResourceExhaustedError(
      absl::StrCat(kPlansQueuedMax, " jobs wait to be planned already: try again later"));
}

// yaml -> spec (planning thread) -> budget (loop) -> Prepare (planning thread) -> done (loop).
// When no worker matches, `prepared` is for what the spec asks; if that is fine it becomes
// NOT_FOUND with the sentence.
struct Pipeline : std::enable_shared_from_this<Pipeline> {
  explicit Pipeline(Control& owner) : control(owner) {}

  void Start(std::string yaml, std::string base_directory) {
    auto self = shared_from_this();
    const bool queued = control.PostPlanning([self, yaml, base_directory] {
      absl::StatusOr<v1::JobSpec> read = ReadJobSpec(yaml, base_directory);
      self->control.loop().Post([self, read = std::move(read)] {
        if (!read.ok()) return self->done(self->spec, false, read.status());
        self->spec = *read;
        self->ChooseBudget();
      });
    });
    if (!queued) done(spec, false, Busy());
  }

  void ChooseBudget() {
    const absl::StatusOr<Budget> now = control.reconciler().BudgetNow(spec);
    const bool placeable = now.ok();
    const Budget budget = placeable ? *now : BudgetOfSpec(spec);
    auto self = shared_from_this();
    const bool queued = control.PostPlanning([self, budget, placeable] {
      absl::StatusOr<Prepared> prepared = self->control.prepare()(self->spec, budget);
      self->control.loop().Post([self, placeable, prepared = std::move(prepared)] {
        self->done(self->spec, placeable, prepared);
      });
    });
    if (!queued) done(spec, false, Busy());
  }

  Control& control;
  v1::JobSpec spec;
  PreparedDone done;
};

v1::Job DryJob(const v1::JobSpec& spec, const Prepared& prepared) {
  v1::Job job;
  *job.mutable_spec() = spec;
  *job.mutable_plan() = prepared.plan;
  return job;
}

absl::StatusOr<v1::ExplainResponse> Listing(const v1::Layout& layout,
                                            const std::vector<v1::Program>& all,
                                            const v1::ExplainRequest& request) {
  std::optional<uint32_t> stage;
  if (request.has_stage()) stage = request.stage();
  ASSIGN_OR_RETURN(const std::vector<v1::Program> programs, SelectStage(all, stage));
  v1::ExplainResponse response;
  response.set_text(ExplainText(layout, programs, request.sequence()));
  for (const v1::Program& program : programs) response.add_programs(SerializeProgram(program));
  return response;
}

absl::StatusOr<v1::ExplainResponse> ExplainStored(Control& control,
                                                  const v1::ExplainRequest& request) {
  ASSIGN_OR_RETURN(const v1::Job job, control.reconciler().Get(request.id()));
  if (job.plan().program_sha256_size() == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job.id(), " has no program yet: ", job.message()));
  }
  std::vector<v1::Program> programs;
  for (const std::string& sha256 : job.plan().program_sha256()) {
    ASSIGN_OR_RETURN(const std::string bytes, control.store().GetProgram(sha256));
    if (!programs.emplace_back().ParseFromString(bytes)) {
      return absl::DataLossError(absl::StrCat("stored program ", sha256, " cannot be read"));
    }
  }
  return Listing(job.plan().layout(), programs, request);
}

}  // namespace

Budget BudgetOfSpec(const v1::JobSpec& spec) {
  const v1::ResourceSpec& resources = spec.resources();
  Budget budget;
  budget.nodes = NodesFor(spec);
  budget.ranks = budget.nodes * std::max<uint32_t>(1, resources.devices_per_node());
  budget.threads_per_rank = std::max<uint32_t>(1, resources.threads_per_device());
  budget.device_memory_bytes = resources.device_memory();
  if (resources.device() == "cuda") budget.device = "cuda";
  return budget;
}

void Submit(Control& control, const v1::SubmitRequest& request,
            std::function<void(absl::StatusOr<v1::Job>)> done) {
  auto pipeline = std::make_shared<Pipeline>(control);
  pipeline->done = [&control, dry_run = request.dry_run(), done = std::move(done)](
                       const v1::JobSpec& spec, bool placeable,
                       const absl::StatusOr<Prepared>& prepared) {
    if (!prepared.ok()) return done(prepared.status());
    if (dry_run) return done(DryJob(spec, *prepared));
    if (placeable) return done(control.reconciler().Submit(spec, prepared));
    const absl::Status waits = control.reconciler().BudgetNow(spec).status();
    done(control.reconciler().Submit(
        spec, waits.ok() ? absl::NotFoundError("a matching worker has just registered") : waits));
  };
  pipeline->Start(request.yaml(), request.base_directory());
}

void Explain(Control& control, const v1::ExplainRequest& request,
             std::function<void(absl::StatusOr<v1::ExplainResponse>)> done) {
  if (!request.id().empty()) {
    control.loop().Post([&control, request, done] { done(ExplainStored(control, request)); });
    return;
  }
  auto pipeline = std::make_shared<Pipeline>(control);
  pipeline->done = [request, done = std::move(done)](const v1::JobSpec&, bool,
                                                     const absl::StatusOr<Prepared>& prepared) {
    done(prepared.ok() ? Listing(prepared->plan.layout(), prepared->programs, request)
                       : prepared.status());
  };
  pipeline->Start(request.yaml(), request.base_directory());
}

}  // namespace terrace
