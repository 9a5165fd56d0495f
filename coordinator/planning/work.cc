// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/work.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "coordinator/evaluation/evaluation.h"
#include "coordinator/model/config.h"
#include "coordinator/planning/continues.h"
#include "coordinator/planning/data_files.h"
#include "coordinator/planning/frames.h"
#include "coordinator/planning/inputs.h"
#include "coordinator/planning/place.h"
#include "coordinator/planning/plan_timer.h"
#include "coordinator/planning/planner.h"
#include "coordinator/prepare/explain.h"
#include "coordinator/prepare/fallback.h"
#include "coordinator/prepare/prepare.h"
#include "coordinator/report/html.h"
#include "proto/program/program_hash.h"
#include "proto/report/plan_json.h"

namespace terrace {
namespace {

// Of /proc/self/oom_score_adj: before the coordinator and what it runs, which do not come back.
constexpr int kOomScore = 800;

absl::Status ReadSpec(const v1::ReadSpecWork& work, const JobRoots& roots,
                      v1::PlannerAnswer* answer) {
  ASSIGN_OR_RETURN(*answer->mutable_spec(),
                   ReadJobSpec(work.yaml(), work.base_directory(), work.member(), roots));
  if (work.to_train()) {
    RETURN_IF_ERROR(CheckDataLengths(answer->spec()));
    answer->set_place(PlaceOf(answer->spec().checkpoint().directory()));
    for (const std::string& other : work.directories()) answer->add_places(PlaceOf(other));
    // Not an error here: while another job writes there, what the directory holds changes.
    const absl::Status continues = CheckContinues(answer->spec());
    if (!continues.ok()) answer->set_no_continuation(std::string(continues.message()));
  }
  const v1::JobSpec& spec = answer->spec();
  const auto config = ParseModelConfig(spec.model().config_json(), spec.data().sequence_length());
  if (config.ok()) answer->set_layers(config->layers);  // else planning says what is wrong
  return absl::OkStatus();
}

absl::StatusOr<v1::ExplainResponse> List(const v1::Layout& layout, std::vector<v1::Program> all,
                                         const v1::PlannerListing& listing) {
  std::optional<uint32_t> stage;
  if (listing.has_stage()) stage = listing.stage();
  ASSIGN_OR_RETURN(const std::vector<v1::Program> programs, SelectStage(std::move(all), stage));
  v1::ExplainResponse response;
  response.set_text(ExplainText(layout, programs, listing.sequence()));
  for (const v1::Program& program : programs) response.add_programs(SerializeProgram(program));
  return response;
}

void AddPlan(const Prepared& prepared, v1::PlannerAnswer* answer) {
  *answer->mutable_plan() = prepared.plan;
  for (const v1::Program& program : prepared.programs) {
    v1::PlannedProgram* planned = answer->add_programs();
    planned->set_bytes(SerializeProgram(program));
    planned->set_sha256(Sha256Hex(planned->bytes()));
  }
}

// A job that may have fewer workers gets as many as there is a layout for: no multiple of 3 ranks
// is a batch of 8. What says that the memory is too small is no better with fewer.
absl::StatusOr<Prepared> PrepareForMost(const v1::JobSpec& spec, Budget budget) {
  constexpr uint32_t kFewerMax = 64;
  absl::StatusOr<Prepared> prepared = PrepareWithLearned(spec, budget);
  const uint32_t least = std::max<uint32_t>(1, spec.resources().nodes_min());
  for (uint32_t fewer = 1; fewer <= kFewerMax && absl::IsInvalidArgument(prepared.status()) &&
                           spec.layout().dp() == 0 && budget.nodes > least;
       ++fewer) {
    budget.ranks -= budget.ranks / budget.nodes;
    --budget.nodes;
    absl::StatusOr<Prepared> smaller = PrepareWithLearned(spec, budget);
    if (smaller.ok()) return smaller;
  }
  return prepared;
}

absl::Status Plan(const v1::PlanWork& work, v1::PlannerAnswer* answer) {
  ASSIGN_OR_RETURN(Prepared prepared, PrepareForMost(work.spec(), FromMessage(work.budget())));
  if (!work.has_listing()) {
    AddPlan(prepared, answer);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(*answer->mutable_explained(),
                   List(prepared.plan.layout(), std::move(prepared.programs), work.listing()));
  return absl::OkStatus();
}

absl::Status FallBack(const v1::DescendWork& work, v1::PlannerAnswer* answer) {
  ASSIGN_OR_RETURN(const ChosenFallback chosen,
                   FindFallback(work.spec(), FromMessage(work.budget()), work.plan()));
  AddPlan(chosen.prepared, answer);
  answer->set_rung(chosen.fallback);
  answer->set_change(chosen.change);
  return absl::OkStatus();
}

template <typename Stored>
absl::StatusOr<std::vector<v1::Program>> Read(const Stored& stored) {
  std::vector<v1::Program> programs;
  for (const std::string& bytes : stored) {
    if (!programs.emplace_back().ParseFromString(bytes)) {
      return absl::DataLossError("a stored program cannot be read");
    }
  }
  return programs;
}

absl::Status ListStored(const v1::ListWork& work, v1::PlannerAnswer* answer) {
  ASSIGN_OR_RETURN(std::vector<v1::Program> programs, Read(work.programs()));
  for (v1::Program& program : programs) program.set_job(work.job());
  ASSIGN_OR_RETURN(*answer->mutable_explained(),
                   List(work.layout(), std::move(programs), work.listing()));
  return absl::OkStatus();
}

absl::Status DrawPage(const v1::PageWork& work, v1::PlannerAnswer* answer) {
  Prepared prepared{.plan = work.plan(),
                    .programs = {},
                    .simulation = {},
                    .model_name = ModelName(work.spec().model(), work.plan().model().family()),
                    .refusal = {}};
  ASSIGN_OR_RETURN(prepared.programs, Read(work.programs()));
  ASSIGN_OR_RETURN(prepared.simulation,
                   Simulate(prepared.programs, "train", prepared.plan.profile()));
  answer->set_page(PlanHtml(prepared, {.trace = work.trace(), .rank = work.rank()}));
  return absl::OkStatus();
}

absl::Status Evaluate(const v1::EvaluateWork& work, const TellProgress& tell,
                      v1::PlannerAnswer* answer) {
  PlanTimer timer(work.seconds());
  ASSIGN_OR_RETURN(*answer->mutable_evaluation(),
                   EvaluateJob(work.spec(), FromMessage(work.budget()),
                               {.brief = work.brief(),
                                .goes_on = [&timer] { return timer.GoesOn(); },
                                .in_time = [&timer] { return timer.InTime(); },
                                .tell = tell}));
  answer->mutable_evaluation()->set_seconds(timer.Seconds());
  return absl::OkStatus();
}

absl::Status Do(const v1::PlannerRequest& request, const TellProgress& tell, const JobRoots& roots,
                v1::PlannerAnswer* answer) {
  switch (request.work_case()) {
    case v1::PlannerRequest::kReadSpec:
      return ReadSpec(request.read_spec(), roots, answer);
    case v1::PlannerRequest::kPlan:
      return Plan(request.plan(), answer);
    case v1::PlannerRequest::kDescend:
      return FallBack(request.descend(), answer);
    case v1::PlannerRequest::kList:
      return ListStored(request.list(), answer);
    case v1::PlannerRequest::kPage:
      return DrawPage(request.page(), answer);
    case v1::PlannerRequest::kEvaluate:
      return Evaluate(request.evaluate(), tell, answer);
    default:
      return absl::InternalError("a planner was asked for work of an unknown kind");
  }
}

v1::PlannerAnswer Failed(const absl::Status& status) {
  v1::PlannerAnswer answer;
  answer.set_code(static_cast<int>(status.code()));
  answer.set_message(std::string(status.message()));
  return answer;
}

}  // namespace

v1::PlannerBudget ToMessage(const Budget& budget) {
  v1::PlannerBudget message;
  message.set_nodes(budget.nodes);
  message.set_ranks(budget.ranks);
  message.set_threads_per_rank(budget.threads_per_rank);
  message.set_device(budget.device);
  message.set_device_memory_bytes(budget.device_memory_bytes);
  message.set_external_bytes(budget.external_bytes);
  *message.mutable_profile() = budget.profile;
  return message;
}

Budget FromMessage(const v1::PlannerBudget& message) {
  return {.nodes = message.nodes(),
          .ranks = message.ranks(),
          .threads_per_rank = message.threads_per_rank(),
          .device = message.device(),
          .device_memory_bytes = message.device_memory_bytes(),
          .external_bytes = message.external_bytes(),
          .profile = message.profile()};
}

v1::PlannerAnswer AnswerOf(const v1::PlannerRequest& request, const TellProgress& tell,
                           const JobRoots& roots) {
  v1::PlannerAnswer answer;
  const absl::Status status = Do(request, tell, roots, &answer);
  return status.ok() ? answer : Failed(status);
}

absl::Status AnswerRequests(const JobRoots& roots) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::ofstream("/proc/self/oom_score_adj") << kOomScore;
  const TellProgress tell = [](const v1::EvaluationProgress& progress) {
    v1::PlannerAnswer now;
    *now.mutable_progress() = progress;
    (void)WriteFrame(STDOUT_FILENO, now);  // who has gone is found when the answer is written
  };
  while (true) {
    v1::PlannerRequest request;
    const absl::Status read = ReadFrame(STDIN_FILENO, &request);
    if (absl::IsOutOfRange(read)) return absl::OkStatus();  // nobody asks any more
    RETURN_IF_ERROR(read);
    absl::Status written = WriteFrame(STDOUT_FILENO, AnswerOf(request, tell, roots));
    if (absl::IsResourceExhausted(written)) written = WriteFrame(STDOUT_FILENO, Failed(written));
    RETURN_IF_ERROR(written);
  }
}

}  // namespace terrace
