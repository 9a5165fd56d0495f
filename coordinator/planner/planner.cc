// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/planner.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "coordinator/planner/closed_form_error.h"
#include "coordinator/planner/planner_compare.h"
#include "coordinator/planner/space.h"

namespace terrace {
namespace {

// Whatever the closed form is off by.
bool Exceeds(int64_t bytes, double bound, int64_t limit) {
  return limit > 0 &&
         static_cast<double>(bytes - kClosedFormSlackBytes) > bound * static_cast<double>(limit);
}

}  // namespace

absl::StatusOr<Proposals> Propose(const v1::JobSpec& spec, const Model& model, const Budget& budget,
                                  Search search) {
  Comparison comparison(spec, model, budget, search);
  RETURN_IF_ERROR(ForEachLayout(spec, model, budget, search, [&](const v1::Layout& layout) {
    comparison.Add(layout);
    return true;
  }));
  return comparison.Take();
}

absl::StatusOr<std::vector<Proposal>> ProposeNearly(const v1::JobSpec& spec, const Model& model,
                                                    const Budget& budget, int64_t* compared) {
  Comparison comparison(spec, model, budget, Search::kTiers);
  RETURN_IF_ERROR(ForEachLayout(spec, model, budget, Search::kTiers, [&](const v1::Layout& layout) {
    comparison.Add(layout);
    return true;
  }));
  std::vector<Proposal> nearly = comparison.TakeNearly();
  *compared += comparison.compared();
  return nearly;
}

absl::StatusOr<bool> AnyHopeful(const v1::JobSpec& spec, const Model& model, const Budget& budget,
                                Search search, int64_t* compared) {
  Comparison comparison(spec, model, budget, search);
  RETURN_IF_ERROR(ForEachLayout(spec, model, budget, search, [&](const v1::Layout& layout) {
    comparison.Add(layout);
    return !comparison.any_hopeful();
  }));
  if (!comparison.any_hopeful()) comparison.MoveAndTile(/*of_all_splits=*/false);
  *compared += comparison.compared();
  return comparison.any_hopeful();
}

absl::StatusOr<std::vector<v1::Layout>> Candidates(const v1::JobSpec& spec, const Model& model,
                                                   const Budget& budget, Search search) {
  ASSIGN_OR_RETURN(Proposals proposals, Propose(spec, model, budget, search));
  std::vector<v1::Layout> layouts;
  for (Proposal& one : proposals.best) layouts.push_back(std::move(one.layout));
  return layouts;
}

LayoutKind LayoutKindOf(const v1::Layout& layout) {
  if (layout.has_offload()) return LayoutKind::kOnTiers;
  const bool whole = layout.tensor_parallel() == 1 && layout.pipeline_parallel() == 1 &&
                     layout.context_parallel() == 1;
  return whole ? LayoutKind::kSharded : LayoutKind::kOnDevice;
}

bool Infeasible(const MemoryEstimate& memory, const v1::Layout& layout, const v1::JobSpec& spec,
                const Budget& budget) {
  const int64_t device = budget.device_memory_bytes;
  return (device > 0 && device <= budget.external_bytes) ||
         Exceeds(memory.total(), BoundsOf(layout).device, ArenaBytesOf(budget)) ||
         InfeasibleElsewhere(memory, layout, spec);
}

bool InfeasibleElsewhere(const MemoryEstimate& memory, const v1::Layout& layout,
                         const v1::JobSpec& spec) {
  const TierLimits limits = LimitsOf(spec);
  const ClosedFormBounds bounds = BoundsOf(layout);
  return Exceeds(memory.host_bytes, bounds.host, limits.host_bytes) ||
         Exceeds(memory.nvme_bytes, bounds.nvme, limits.nvme_bytes);
}

bool UnlikelyElsewhere(const MemoryEstimate& memory, const v1::JobSpec& spec) {
  const TierLimits limits = LimitsOf(spec);
  return Exceeds(memory.host_bytes, kClosedFormLikely, limits.host_bytes) ||
         Exceeds(memory.nvme_bytes, kClosedFormLikely, limits.nvme_bytes);
}

TierLimits LimitsOf(const v1::JobSpec& spec) {
  return {.host_bytes = spec.resources().host_memory(),
          .nvme_bytes = spec.resources().nvme().bytes()};
}

bool OffersTiers(const v1::JobSpec& spec) {
  return spec.resources().host_memory() > 0 || spec.resources().nvme().paths_size() > 0;
}

std::vector<v1::Offload> Offloads(bool to_nvme) {
  std::vector<v1::Offload> offloads(to_nvme ? 4 : 2);
  offloads[0].mutable_optimizer()->set_host(1);
  offloads[1].mutable_optimizer()->set_host(1);
  offloads[1].mutable_parameter()->set_host(1);
  for (size_t i = 2; i < offloads.size(); ++i) {
    const bool all = i == 3;
    v1::Offload& offload = offloads[i];
    offload.mutable_optimizer()->set_nvme(1);
    for (v1::TierShares* shares : {offload.mutable_parameter(), offload.mutable_gradient()}) {
      all ? shares->set_nvme(1) : shares->set_host(1);
    }
  }
  return offloads;
}

}  // namespace terrace
