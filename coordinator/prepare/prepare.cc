// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/prepare.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/hardware/gpu_profile.h"
#include "coordinator/hardware/profiles.h"
#include "coordinator/planner/space.h"
#include "coordinator/prepare/allowed_formats.h"
#include "coordinator/prepare/evaluate.h"
#include "coordinator/prepare/lengths_report.h"
#include "coordinator/prepare/offload_report.h"
#include "coordinator/prepare/plan_report.h"
#include "coordinator/prepare/search.h"
#include "coordinator/prepare/search_trial.h"
#include "coordinator/prepare/what_fits.h"
#include "proto/report/plan_json.h"

namespace terrace {
namespace {

// What layouts are compared with. Measured rates differ from one start of a worker to the next, and
// a job that is run again or resumed must get the same layout, so that its sums are the same bit by
// bit: measurements tell how long the chosen layout takes, they do not choose it.
Budget ForChoosing(const v1::JobSpec& spec, const Budget& budget) {
  Budget reference = budget;
  const v1::HardwareProfile& given = budget.profile;
  if (given.measured() && given.device() == "cuda") {
    reference.profile = WhatIfProfile({.name = given.name(),
                                       .memory_bytes = given.device_memory_bytes(),
                                       .per_node = given.ranks_per_node()});
  } else if (given.measured() || given.f32_flops_per_second() <= 0) {
    reference.profile = CpuProfile(budget.threads_per_rank, given.name());
  }
  reference.profile = ProfileFor(spec, reference.profile);
  return reference;
}

// What may be changed, tried: shown beside a plan that does not fit.
constexpr size_t kChangesShown = 3;

// With the rates that were measured, where any were.
absl::Status SimulateAgain(const v1::JobSpec& spec, const Budget& given, Budget* budget,
                           std::vector<Evaluated*> all) {
  if (!given.profile.measured()) return absl::OkStatus();
  budget->profile = ProfileFor(spec, given.profile);
  for (Evaluated* one : all) RETURN_IF_ERROR(SimulateStep(budget->profile, one));
  return absl::OkStatus();
}

absl::StatusOr<Prepared> Refused(const v1::JobSpec& spec, const Model& model, const Budget& given,
                                 Budget budget, Searched searched, Changes changes,
                                 absl::Status refusal) {
  std::vector<Evaluated*> shown = {&searched.evaluated.front()};
  for (Change& change : changes.found) shown.push_back(&change.evaluated);
  RETURN_IF_ERROR(SimulateAgain(spec, given, &budget, shown));
  const Evaluated& nearest = searched.evaluated.front();
  Prepared prepared;
  prepared.refusal = std::move(refusal);
  std::vector<Evaluated> others;
  for (Change& change : changes.found) others.push_back(std::move(change.evaluated));
  prepared.model_name = ModelName(spec.model(), model.config.family);
  prepared.plan = ReportPlan(spec, model, budget, nearest, others);
  for (size_t i = 0; i < changes.found.size(); ++i) {
    prepared.plan.mutable_alternatives(static_cast<int>(i))->set_note(changes.found[i].words);
  }
  prepared.plan.set_binding_constraint(std::string(prepared.refusal.message()));
  ReportSearch(searched, searched.evaluated.size(), &prepared.plan);
  prepared.programs = nearest.programs;
  prepared.simulation = nearest.simulation;
  return prepared;
}

// A refusal's own advice comes first: what changes nothing that the spec says is a plan.
bool FitsAfterAll(Changes* changes, Searched* searched) {
  for (Change& change : changes->found) {
    if (!change.within_spec) continue;
    searched->evaluated.clear();
    searched->evaluated.push_back(std::move(change.evaluated));
    return true;
  }
  return false;
}

absl::StatusOr<Prepared> Chosen(const v1::JobSpec& spec, const Model& model, const Budget& given,
                                Budget budget, Searched searched) {
  std::vector<Evaluated>& evaluated = searched.evaluated;
  const size_t compiled = evaluated.size();
  std::vector<Evaluated*> all;
  for (Evaluated& one : evaluated) all.push_back(&one);
  RETURN_IF_ERROR(SimulateAgain(spec, given, &budget, all));
  Evaluated chosen = std::move(evaluated.front());
  evaluated.erase(evaluated.begin());
  Prepared prepared;
  prepared.model_name = ModelName(spec.model(), model.config.family);
  prepared.plan = ReportPlan(spec, model, budget, chosen, evaluated);
  ReportSearch(searched, compiled, &prepared.plan);
  ASSIGN_OR_RETURN(const std::string lengths, StepsByLength(chosen, budget.profile));
  if (!lengths.empty()) {
    prepared.plan.set_binding_constraint(
        absl::StrCat(prepared.plan.binding_constraint(), "\n", lengths));
  }
  RETURN_IF_ERROR(CheckDriveLife(spec, prepared.plan));
  prepared.programs = std::move(chosen.programs);
  prepared.simulation = std::move(chosen.simulation);
  return prepared;
}

// Of what does not fit.
enum class Unfit {
  kRefused,   // the cheapest change that fits is named
  kShown,     // planned, with several changes that fit
  kMeasured,  // planned, with no look at changes
};

absl::StatusOr<Prepared> PrepareWith(const v1::JobSpec& asked, const Budget& given, Unfit unfit,
                                     const TellSearch& tell, const InTime& in_time) {
  const Budget budget = ForChoosing(asked, given);
  ASSIGN_OR_RETURN(const Model model, ReadModel(asked));
  const bool anyway = unfit != Unfit::kRefused;
  SearchOptions options;
  if (unfit != Unfit::kShown) options.in_time = in_time;
  SearchCost cost;
  ASSIGN_OR_RETURN(AllowedSearch allowed, SearchAllowed(asked, model, budget, options, &cost));
  // With the formats that were allowed and chosen, if any were.
  const v1::JobSpec& spec = allowed.spec;
  Searched& searched = allowed.searched;
  if (searched.evaluated.front().fits) {
    return Chosen(spec, model, given, budget, std::move(searched));
  }
  if (unfit == Unfit::kMeasured) {
    absl::Status refusal =
        absl::ResourceExhaustedError(NeedsMore(spec, budget, searched.evaluated.front()));
    return Refused(spec, model, given, budget, std::move(searched), {}, std::move(refusal));
  }
  ChangeLimits limits = LimitsAfter(cost);
  limits.in_time = in_time;
  Changes changes = ChangesThatFit(spec, budget, anyway ? kChangesShown : 1, tell, limits);
  // What was not tried for want of time may fit.
  if (!anyway && in_time && !in_time()) return OutOfTime();
  if (FitsAfterAll(&changes, &searched))
    return Chosen(spec, model, given, budget, std::move(searched));
  absl::Status refusal = DoesNotFit(spec, budget, searched, changes);
  if (!anyway) return refusal;
  return Refused(spec, model, given, budget, std::move(searched), std::move(changes),
                 std::move(refusal));
}

}  // namespace

absl::Status CheckSpec(const v1::JobSpec& spec, const Budget& budget) {
  ASSIGN_OR_RETURN(const Model model, ReadModel(spec));
  const auto any = [&](Search search) {
    return ForEachLayout(spec, model, budget, search, [](const v1::Layout&) { return false; });
  };
  const absl::Status plain = any(Search::kPlain);
  return plain.ok() || any(Search::kAll).ok() ? absl::OkStatus() : plain;
}

absl::StatusOr<Prepared> Prepare(const v1::JobSpec& spec, const Budget& budget,
                                 const InTime& in_time) {
  return PrepareWith(spec, budget, Unfit::kRefused, {}, in_time);
}

absl::StatusOr<Prepared> PrepareAnyway(const v1::JobSpec& spec, const Budget& budget,
                                       const TellSearch& tell, const InTime& in_time) {
  return PrepareWith(spec, budget, Unfit::kShown, tell, in_time);
}

absl::StatusOr<Prepared> PrepareToCompare(const v1::JobSpec& spec, const Budget& budget,
                                          const InTime& in_time) {
  return PrepareWith(spec, budget, Unfit::kMeasured, {}, in_time);
}

}  // namespace terrace
