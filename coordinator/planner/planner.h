// Proposes layouts: those that respect the pinned keys and the model's dimensions, fastest first by
// closed form. What is compiled, checked and simulated exactly, and what is chosen, is
// prepare/search.h's.
//
// Pure: hardware rates and budgets are arguments. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/hardware/budget.h"
#include "coordinator/model/model.h"
#include "coordinator/planner/estimate.h"
#include "coordinator/planner/fit.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

enum class Search {
  kPlain,  // what is not pinned is off: data parallelism over all ranks, no ZeRO, no recompute
  kAll,    // every combination, without those that the closed form calls infeasible
  kTiers,  // those, and with as much as is needed on the tiers that `resources` offers
};

// Bytes that a rank may use of the tiers other than the device, by `resources`.
struct TierLimits {
  int64_t host_bytes = 0;  // 0: no limit was given
  int64_t nvme_bytes = 0;
};
TierLimits LimitsOf(const v1::JobSpec& spec);

// Offloads worth trying, the one that costs least time first: the optimizer's states to the host,
// weights with them, the states to NVMe, everything to NVMe.
std::vector<v1::Offload> Offloads(bool to_nvme);

// True when kTiers has more to propose than kAll.
bool OffersTiers(const v1::JobSpec& spec);

// So far over what a tier has for the arenas that closed forms of such layouts are never as far off
// (closed_form_error.h): not worth compiling. Elsewhere: of the tiers other than the device.
bool Infeasible(const MemoryEstimate& memory, const v1::Layout& layout, const v1::JobSpec& spec,
                const Budget& budget);
bool InfeasibleElsewhere(const MemoryEstimate& memory, const v1::Layout& layout,
                         const v1::JobSpec& spec);
// The same by what closed forms are off by in nineteen cases of twenty.
bool UnlikelyElsewhere(const MemoryEstimate& memory, const v1::JobSpec& spec);

struct Proposal {
  v1::Layout layout;   // complete
  double seconds = 0;  // of a step, by closed form
  MemoryEstimate memory;
  // What is recomputed is still to be chosen layer by layer (fit.h), between one kind for all
  // layers and the next: `seconds` says so already, `memory` is the budget.
  bool to_fit = false;
  // How what rests elsewhere was chosen by closed form, so that it can be chosen again for less.
  std::optional<OffloadWay> way;
};

// Layouts are proposed, tried and chosen kind by kind: predictions are good for a tenth, so a
// plainer kind is left only for one that is faster by more.
enum class LayoutKind {
  kPlain,     // what is not pinned is off
  kSharded,   // every rank has all layers, whatever is shared or recomputed
  kOnDevice,  // all others without offload
  kOnTiers,   // parts rest elsewhere
};
// kPlain is what Search::kPlain proposes, no property of the layout.
LayoutKind LayoutKindOf(const v1::Layout& layout);

struct Proposals {
  std::vector<Proposal> best;  // the fastest first; of each kind some, and among them the smallest
                               // of all, and the fastest of every tenth of memory less
  // Where none of these fits: of each way to divide the ranks and share the states the fastest that
  // fits by closed form, and the one with the most room, the plainest ways first.
  std::vector<Proposal> plainer;
  int64_t compared = 0;  // layouts
};
// Never none. Errors as of Candidates().
absl::StatusOr<Proposals> Propose(const v1::JobSpec& spec, const Model& model, const Budget& budget,
                                  Search search);

// Layouts that by closed form are over the limits by less than it is off by as a rule: the smallest
// of each split, and each split on each way to the tiers that `resources` offers, the nearest
// first. What compiling them shows says how much more, or less, is to leave. Errors as of
// Candidates(). How many were compared is added to `compared`.
absl::StatusOr<std::vector<Proposal>> ProposeNearly(const v1::JobSpec& spec, const Model& model,
                                                    const Budget& budget, int64_t* compared);

// Whether Propose() would have one that is not infeasible; asks no more layouts than it takes to
// know. How many is added to `compared`.
absl::StatusOr<bool> AnyHopeful(const v1::JobSpec& spec, const Model& model, const Budget& budget,
                                Search search, int64_t* compared);

// Complete layouts, never none. INVALID_ARGUMENT when none can respect the spec (more ranks than
// devices, a batch or a dimension that does not divide), naming the keys and the nearest values
// that work.
absl::StatusOr<std::vector<v1::Layout>> Candidates(const v1::JobSpec& spec, const Model& model,
                                                   const Budget& budget,
                                                   Search search = Search::kPlain);

}  // namespace terrace
