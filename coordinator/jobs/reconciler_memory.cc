// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/strings.h"
#include "coordinator/jobs/reconciler.h"
#include "proto/program/program_hash.h"

// What was learned of memory, and what follows for jobs that ran out of it.
//
// A job that ran out is stored as such, with an adjustment that lacks its layout. Every pass looks
// for these, so that a coordinator that dies on the way begins the descent again: it is a pure
// function and comes to the same layout.
namespace terrace {
namespace {

constexpr size_t kBudgetsKept = 256;

}  // namespace

std::string ShapeOf(const v1::JobSpec& spec) {
  v1::JobSpec shape;
  shape.mutable_model()->set_config_json(spec.model().config_json());
  shape.mutable_data()->set_tokenizer(spec.data().tokenizer());
  shape.mutable_data()->set_sequence_length(spec.data().sequence_length());
  shape.mutable_train()->set_precision(spec.train().precision());
  *shape.mutable_train()->mutable_precision_rules() = spec.train().precision_rules();
  return Sha256Hex(shape.SerializeAsString());
}

// Jobs of a queue ask for a few things only, and workers come and go rarely.
absl::StatusOr<Budget> Reconciler::BudgetNow(const v1::JobSpec& spec) const {
  if (std::exchange(budgets_version_, cluster_.members_version()) != cluster_.members_version() ||
      budgets_.size() >= kBudgetsKept) {
    budgets_.clear();
  }
  const std::string shape = learned_.empty() ? "" : ShapeOf(spec);
  std::string key = absl::StrCat(shape, "/", spec.resources().SerializeAsString().size(), "/");
  spec.resources().AppendToString(&key);
  spec.layout().AppendToString(&key);
  const auto found = budgets_.find(key);
  if (found != budgets_.end()) return found->second;
  return budgets_.try_emplace(std::move(key), BudgetAmong(spec, shape, KnownNodes())).first->second;
}

absl::StatusOr<Budget> Reconciler::BudgetAmong(const v1::JobSpec& spec, const std::string& shape,
                                               std::vector<NodeView> nodes) const {
  for (NodeView& node : nodes) {
    const auto learned = shape.empty() ? learned_.end() : learned_.find({node.name, shape});
    if (learned != learned_.end()) node.external_bytes = learned->second;
  }
  return BudgetFor(spec, nodes);
}

void Reconciler::ForgetBudgets() {
  budgets_.clear();
  place_due_ = plan_due_ = true;
}

absl::StatusOr<Budget> Reconciler::BudgetOf(const v1::Job& job) const {
  absl::StatusOr<Budget> budget = BudgetNow(job.spec());
  if (budget.ok()) {
    budget->external_bytes = std::max(budget->external_bytes, job.learned_external_bytes());
  }
  return budget;
}

void Reconciler::FindSmallerLayouts() {
  for (const std::string& id : index_.shrinking()) {
    Entry& entry = *Find(id);
    // Its old ranks end first: until then they may still report a checkpoint.
    if (entry.planning || cluster_.HasRanksOf(id)) continue;
    if (clock_.MonotonicNanos() < entry.plan_again_ns) continue;
    const absl::StatusOr<Budget> budget = BudgetOf(entry.job);
    if (!budget.ok()) continue;  // its workers are away
    entry.planning = true;
    ports_.Descend(entry.job.spec(), *budget, entry.job.plan(), entry.wanted,
                   [this, id](absl::StatusOr<DescendedJob> descended) {
                     FinishDescent(id, std::move(descended));
                   });
  }
}

void Reconciler::FinishDescent(const std::string& id, absl::StatusOr<DescendedJob> descended) {
  Entry* entry = Find(id);
  if (entry == nullptr) return;  // cancelled meanwhile
  entry->planning = false;
  absl::Status status;
  const bool lost =
      absl::IsAborted(descended.status()) && ++entry->planners_lost < kPlannersLostMax;
  if (descended.ok()) {
    entry->planners_lost = 0;
    status = Commit({.programs = std::move(descended->planned.programs)});
    if (status.ok()) {
      status =
          Update(id, Adjusted{std::move(descended->planned.plan), std::move(descended->change)});
    }
    if (status.ok()) ++stats_.adjustments[descended->rung];
  } else if (lost || absl::IsUnavailable(descended.status())) {
    status = descended.status();
  } else {
    status =
        Update(id, Refused{v1::REASON_OUT_OF_MEMORY, std::string(descended.status().message())});
  }
  if (!status.ok()) {
    log::Warn("job ", id, " is to get its fallback again: ", status.message());
    entry->plan_again_ns = clock_.MonotonicNanos() + timing_.plan_again_ns;
  }
  Pass();
}

}  // namespace terrace
