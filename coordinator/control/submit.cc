// SPDX-License-Identifier: Apache-2.0
#include "coordinator/control/submit.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/hardware/budget.h"

namespace terrace {
namespace {

using Answer = absl::StatusOr<v1::PlannerAnswer>;

// A page of a plan waits so long for a worker's trace, and leaves out one that is longer than ranks
// write.
constexpr absl::Duration kTraceWait = absl::Seconds(5);
constexpr size_t kTraceBytesMax = size_t{32} << 20;

// yaml -> spec (planner) -> budget (loop) -> plan (planner) -> done (loop). When no worker matches,
// the plan is for what the spec asks.
struct Pipeline : std::enable_shared_from_this<Pipeline> {
  Pipeline(Control& owner, std::function<bool()> is_abandoned)
      : control(owner), abandoned(std::move(is_abandoned)) {}

  void Start(const std::string& yaml, const std::string& base_directory) {
    v1::PlannerRequest request;
    request.mutable_read_spec()->set_yaml(yaml);
    request.mutable_read_spec()->set_base_directory(base_directory);
    request.mutable_read_spec()->set_to_train(to_train);
    if (member.size() > 0) *request.mutable_read_spec()->mutable_member() = member;
    if (!to_train) return Read(std::move(request), /*is_again=*/false);
    control.loop().Post([self = shared_from_this(), request = std::move(request)]() mutable {
      self->Read(std::move(request), /*is_again=*/false);
    });
  }

  void Read(v1::PlannerRequest request, bool is_again) {
    v1::ReadSpecWork& work = *request.mutable_read_spec();
    work.clear_directories();
    if (to_train) {
      for (std::string& directory : control.reconciler().DirectoriesToPlace())
        *work.add_directories() = std::move(directory);
    }
    Ask(request, 0, [self = shared_from_this(), request, is_again](Answer read) {
      if (!read.ok()) return self->done(read.status());
      self->spec = std::move(*read->mutable_spec());
      self->place = read->place();
      self->NotePlaces(request.read_spec(), *read);
      const absl::Status status = self->Check(*read);
      // What is known of the other directory may be a minute old.
      if (!status.ok() && self->to_train && !is_again &&
          self->control.reconciler().DoubtPlace(self->Directory(), self->place)) {
        return self->Read(request, /*is_again=*/true);
      }
      if (!status.ok()) return self->done(status);
      self->Plan(read->layers());
    });
  }

  void NotePlaces(const v1::ReadSpecWork& asked, const v1::PlannerAnswer& read) {
    for (int i = 0; i < std::min(asked.directories_size(), read.places_size()); ++i)
      control.reconciler().NotePlace(asked.directories(i), read.places(i));
  }

  absl::Status Check(const v1::PlannerAnswer& read) {
    const Reconciler& reconciler = control.reconciler();
    RETURN_IF_ERROR(reconciler.Admit(&spec));
    RETURN_IF_ERROR(reconciler.CheckAfter(after));
    RETURN_IF_ERROR(reconciler.CheckMember(member, owner));
    if (!to_train) return absl::OkStatus();
    RETURN_IF_ERROR(reconciler.CheckDirectoryIsFree(Directory(), place));
    if (read.no_continuation().empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(read.no_continuation());
  }

  void Plan(int64_t layers) {
    const absl::StatusOr<Budget> now = control.reconciler().BudgetNow(spec);
    placeable = now.ok();
    v1::PlannerRequest request;
    if (evaluate.has_value()) {
      *evaluate->mutable_spec() = spec;
      *evaluate->mutable_budget() = ToMessage(placeable ? *now : BudgetOfSpec(spec));
      *request.mutable_evaluate() = *std::move(evaluate);
      return Ask(std::move(request), layers,
                 [self = shared_from_this()](Answer answer) { self->done(std::move(answer)); });
    }
    v1::PlanWork& plan = *request.mutable_plan();
    *plan.mutable_spec() = spec;
    *plan.mutable_budget() = ToMessage(placeable ? *now : BudgetOfSpec(spec));
    if (listing.has_value()) *plan.mutable_listing() = *listing;
    Ask(std::move(request), layers,
        [self = shared_from_this()](Answer planned) { self->done(std::move(planned)); });
  }

  const std::string& Directory() const { return spec.checkpoint().directory(); }

  // `then` runs on the loop.
  void Ask(v1::PlannerRequest request, int64_t size, std::function<void(Answer)> then) {
    control.planner().Start(
        {.request = std::move(request),
         .size = size,
         .abandoned = abandoned,
         .tell = tell,
         .done = [&loop = control.loop(), then = std::move(then)](Answer answer) {
           loop.Post([then, answer = std::move(answer)]() mutable { then(std::move(answer)); });
         }});
  }

  Control& control;
  const std::function<bool()> abandoned;
  std::optional<v1::PlannerListing> listing;
  std::optional<v1::EvaluateWork> evaluate;
  std::function<void(const v1::EvaluationProgress&)> tell;
  bool to_train = false;
  // These three are set where a job is submitted.
  Dependencies after;
  v1::ArrayMember member;
  std::string owner;
  v1::JobSpec spec;
  std::string place;  // of its checkpoint directory
  bool placeable = false;
  std::function<void(Answer)> done;
};

v1::Job DryJob(const v1::JobSpec& spec, const v1::Plan& plan) {
  v1::Job job;
  *job.mutable_spec() = spec;
  *job.mutable_plan() = plan;
  return job;
}

// The job and its programs, as `Work` (ListWork, PageWork) has them.
template <typename Work>
absl::StatusOr<v1::Job> TakePrograms(Control& control, const std::string& id, Work* work) {
  ASSIGN_OR_RETURN(v1::Job job, control.reconciler().Get(id));
  if (job.plan().program_sha256_size() == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job.id(), " has no program yet: ", job.message()));
  }
  for (const std::string& sha256 : job.plan().program_sha256()) {
    ASSIGN_OR_RETURN(*work->add_programs(), control.store().GetProgram(sha256));
  }
  return job;
}

// The trace of the first rank; empty where there is none, or its worker does not answer in time.
// `done` is called once, on the loop.
void ReadTrace(Control& control, const std::string& id, std::function<void(std::string)> done) {
  struct Reading {
    std::string text;
    uint64_t reader = 0;
    bool answered = false;
  };
  auto reading = std::make_shared<Reading>();
  const auto finish = [&control, reading, done](bool is_whole) {
    if (std::exchange(reading->answered, true)) return;
    // Not at once: this may run inside the delivery of a chunk to this reader.
    control.loop().Post([&control, reading, done, is_whole] {
      control.StopLog(reading->reader);
      done(is_whole ? std::move(reading->text) : "");
    });
  };
  v1::LogsRequest request;
  request.set_id(id);
  request.set_trace(true);
  const auto reader = control.ReadLog(request, [reading, finish](const v1::LogText& chunk) {
    reading->text += chunk.text();
    if (!chunk.error().empty() || reading->text.size() > kTraceBytesMax) return finish(false);
    if (chunk.end()) finish(true);
  });
  if (!reader.ok()) return done("");
  reading->reader = *reader;
  control.CallAfter(kTraceWait, [finish] { finish(false); });
}

v1::PlannerListing ListingOf(const v1::ExplainRequest& request) {
  v1::PlannerListing listing;
  listing.set_sequence(request.sequence());
  if (request.has_stage()) listing.set_stage(request.stage());
  return listing;
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

void Submit(Control& control, const v1::SubmitRequest& request, const Submitted& as,
            std::function<bool()> abandoned, std::function<void(absl::StatusOr<v1::Job>)> done) {
  auto pipeline = std::make_shared<Pipeline>(control, std::move(abandoned));
  // A job of a sweep is checked before the first is submitted, so that none is refused then.
  pipeline->to_train = !request.dry_run() || as.member.size() > 0;
  pipeline->after = as.after;
  pipeline->member = as.member;
  pipeline->owner = as.owner;
  pipeline->done = [pipe = pipeline.get(), &control, as, dry_run = request.dry_run(),
                    done = std::move(done)](Answer planned) {
    if (!planned.ok()) return done(planned.status());
    if (dry_run) return done(DryJob(pipe->spec, planned->plan()));
    SubmittedJob job{.spec = pipe->spec, .planned = absl::StatusOr<PlannedJob>(), .as = as};
    job.as.place = pipe->place;
    if (pipe->placeable) {
      job.planned = PlannedOf(std::move(planned));
    } else {
      const absl::Status waits = control.reconciler().BudgetNow(pipe->spec).status();
      job.planned =
          waits.ok() ? absl::NotFoundError("a matching worker has just registered") : waits;
    }
    control.SubmitSoon(std::move(job), done);
  };
  pipeline->Start(request.yaml(), request.base_directory());
}

void Explain(Control& control, const v1::ExplainRequest& request, std::function<bool()> abandoned,
             std::function<void(absl::StatusOr<v1::ExplainResponse>)> done) {
  auto pipeline = std::make_shared<Pipeline>(control, std::move(abandoned));
  pipeline->listing = ListingOf(request);
  pipeline->done = [done = std::move(done)](Answer answer) {
    if (!answer.ok()) return done(answer.status());
    done(std::move(*answer->mutable_explained()));
  };
  if (request.id().empty()) return pipeline->Start(request.yaml(), request.base_directory());
  control.loop().Post([pipeline, id = request.id()] {
    v1::PlannerRequest list;
    v1::ListWork& work = *list.mutable_list();
    const absl::StatusOr<v1::Job> job = TakePrograms(pipeline->control, id, &work);
    if (!job.ok()) return pipeline->done(job.status());
    *work.mutable_layout() = job->plan().layout();
    work.set_job(job->spec().name());
    *work.mutable_listing() = *pipeline->listing;
    pipeline->Ask(std::move(list), 0,
                  [pipeline](Answer answer) { pipeline->done(std::move(answer)); });
  });
}

void Evaluate(Control& control, const v1::EvaluateRequest& request, std::function<bool()> abandoned,
              std::function<void(const v1::EvaluationProgress&)> tell,
              std::function<void(absl::StatusOr<v1::Evaluation>)> done) {
  auto pipeline = std::make_shared<Pipeline>(control, std::move(abandoned));
  pipeline->evaluate.emplace();
  pipeline->evaluate->set_seconds(request.seconds());
  pipeline->evaluate->set_brief(request.brief());
  pipeline->tell = std::move(tell);
  pipeline->done = [done = std::move(done)](Answer answer) {
    if (!answer.ok()) return done(answer.status());
    done(std::move(*answer->mutable_evaluation()));
  };
  pipeline->Start(request.yaml(), request.base_directory());
}

void DrawPlan(Control& control, const std::string& id,
              std::function<void(absl::StatusOr<std::string>)> done) {
  auto pipeline = std::make_shared<Pipeline>(control, nullptr);
  control.loop().Post([pipeline, id, done = std::move(done)] {
    auto request = std::make_shared<v1::PlannerRequest>();
    v1::PageWork& work = *request->mutable_page();
    absl::StatusOr<v1::Job> job = TakePrograms(pipeline->control, id, &work);
    if (!job.ok()) return done(job.status());
    const auto memory = pipeline->control.reconciler().Memory(id);
    if (memory.ok() && memory->ranks_size() > 0) *work.mutable_rank() = memory->ranks(0);
    *work.mutable_spec() = std::move(*job->mutable_spec());
    *work.mutable_plan() = std::move(*job->mutable_plan());
    const auto draw = [pipeline, request, done](std::string trace) {
      request->mutable_page()->set_trace(std::move(trace));
      pipeline->Ask(std::move(*request), 0, [pipeline, done](Answer answer) {
        if (!answer.ok()) return done(answer.status());
        done(std::move(*answer->mutable_page()));
      });
    };
    if (work.spec().train().trace_steps() == 0) return draw("");
    ReadTrace(pipeline->control, id, draw);
  });
}

}  // namespace terrace
