// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/earn.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "coordinator/compiler/insertions.h"
#include "coordinator/compiler/place.h"
#include "coordinator/compiler/roll.h"
#include "coordinator/compiler/streams.h"

namespace terrace::compiler {
namespace {

// More than one part in this many of the bound is too much to leave unused.
constexpr int64_t kWorthPart = 100;
// Less than this is not worth what waits cost, whatever part of the bound it is.
constexpr int64_t kLeastBytes = int64_t{1} << 20;
// Over the bound, that is left of many buffers that fit their device.
constexpr int64_t kFittingPart = 50;
// With more buffers what pages make fit is not searched a packing in one piece each: it takes many
// seconds and hardly ever finds one.
constexpr int kSearchedBuffers = 8192;
// Waits save one part in so many of what lives at once, at most.
constexpr int64_t kSavedPart = 10;

// The ways to shorten lives, each begun afresh: two that cost about as much, then both.
struct Waits {
  int retire_marks = kRetireMarks;
  bool late_gathers = false;
};
constexpr Waits kWaits[] = {
    {kRetireMarks, true}, {kRetireMarks - 1, false}, {kRetireMarks - 1, true}};

bool IsWorth(int64_t bytes, int64_t bound) {
  return bytes > std::max(bound / kWorthPart, kLeastBytes);
}

// Of what the packing of the device leaves unused even at its fullest moment.
bool WorthEarning(const v1::Program& program, int64_t bound) {
  return IsWorth(program.arenas(0).bytes() - bound, bound);
}

// More than that, however little it is: pages cost no waits.
bool IsLoose(const v1::Program& program) {
  const int64_t bound = program.arenas(0).lower_bound_bytes();
  return program.arenas(0).bytes() - bound > bound / kWorthPart;
}

// With an arena of so many bytes there is nothing to gain by needing less.
bool FitsWith(const v1::Program& program, int64_t arena_bytes) {
  const int64_t bytes = arena_bytes + program.external_bytes();
  return program.device_limit_bytes() > 0 && bytes <= program.device_limit_bytes();
}

bool Fits(const v1::Program& program) { return FitsWith(program, program.arenas(0).bytes()); }

// What does not fit in one piece each may do with pages.
bool MayPage(const v1::Program& program, const PackingPolicy& policy) {
  if (policy.pages == PagePolicy::kNever) return false;
  return policy.pages == PagePolicy::kAlways ||
         (program.device_limit_bytes() > 0 && !Fits(program));
}

bool PagesWhereLoose(const PackingPolicy& policy) {
  return policy.pages == PagePolicy::kAlways || policy.pages == PagePolicy::kWhereLoose;
}

// Emits and packs.
absl::Status Attempt(const EmitInput& input, const Waits& waits, const PlaceOptions& options,
                     Graph* graph, v1::Program* program) {
  if (waits.late_gathers) {
    for (Sequence& sequence : graph->sequences) HalveLeads(*graph, &sequence.nodes);
  }
  AssignStreams(waits.retire_marks, graph);
  RETURN_IF_ERROR(Emit(input, program));
  if (input.roll.micro_batches > 0) RETURN_IF_ERROR(Roll(input.roll, program));
  return PlaceBuffers(program, options);
}

bool AtBound(const v1::Arena& arena) { return arena.bytes() == arena.lower_bound_bytes(); }

// Those beside the device's.
bool OthersAtBound(const v1::Program& program) {
  return std::all_of(program.arenas().begin() + 1, program.arenas().end(), AtBound);
}

// The search would start below this.
bool OrdersDo(const v1::Program& program) {
  return AtBound(program.arenas(0)) && OthersAtBound(program);
}

// True when `other` needs less of the device and no more of anything else.
bool Better(const v1::Program& other, const v1::Program& program) {
  for (int i = 1; i < program.arenas_size(); ++i) {
    if (other.arenas(i).bytes() > program.arenas(i).bytes()) return false;
  }
  return other.arenas(0).bytes() < program.arenas(0).bytes();
}

// Nothing is gained by needing less: it fits its device near to the bound, and nothing else can be
// smaller.
bool IsEnough(const v1::Program& program, const PackingPolicy& policy) {
  if (!Fits(program) || !OthersAtBound(program)) return false;
  const bool many = program.buffers_size() > static_cast<int>(kSoonPacked);
  const int64_t bound = program.arenas(0).lower_bound_bytes();
  // Pages do soon what takes searches seconds.
  const int64_t part = PagesWhereLoose(policy) ? kWorthPart : kFittingPart;
  return policy.only_to_fit || (many && program.arenas(0).bytes() - bound <= bound / part);
}

// Keeps the better one of this packing and another.
absl::Status PlaceBetter(const PlaceOptions& options, v1::Program* program) {
  v1::Program other = *program;
  RETURN_IF_ERROR(PlaceBuffers(&other, options));
  if (Better(other, *program)) *program = std::move(other);
  return absl::OkStatus();
}

// Pages for what orders leave.
PlaceOptions OrdersAndPages(const PackingPolicy& policy) {
  return {.effort = std::min(policy.effort, PackEffort::kOrders),
          .pages = true,
          .packed = true,
          .only_to_fit = policy.only_to_fit};
}

PlaceOptions Searches(const PackingPolicy& policy, bool pages) {
  return {.effort = policy.effort, .pages = pages, .only_to_fit = policy.only_to_fit};
}

// Of a program whose orders were tried: pages wherever they leave too much; where those do not do,
// searches, and pages for what these leave: with large pages less may be lost of it.
absl::Status ImproveByPages(const PackingPolicy& policy, bool searches, v1::Program* program) {
  RETURN_IF_ERROR(PlaceBetter(OrdersAndPages(policy), program));
  return !IsLoose(*program) || !searches ? absl::OkStatus()
                                         : PlaceBetter(Searches(policy, /*pages=*/true), program);
}

// With more steps what orders choose holes for may well end higher: that is kept as it was.
absl::Status Search(const PackingPolicy& policy, v1::Program* program) {
  v1::Program other = *program;
  RETURN_IF_ERROR(PlaceBuffers(&other, Searches(policy, /*pages=*/false)));
  TakeSmallerArenas(other, program);
  return absl::OkStatus();
}

// Of a program whose orders were tried: searches; pages where it does not fit. Where it does not
// fit with pages either, no search makes it fit.
absl::Status ImproveToFit(const PackingPolicy& policy, bool searches, v1::Program* program) {
  if (!MayPage(*program, policy)) return searches ? Search(policy, program) : absl::OkStatus();
  v1::Program paged = *program;
  RETURN_IF_ERROR(PlaceBetter(OrdersAndPages(policy), &paged));
  const bool soon = program->buffers_size() <= kSearchedBuffers;
  if (searches && soon && Fits(paged)) RETURN_IF_ERROR(Search(policy, program));
  if (!Fits(*program)) TakeSmallerArenas(paged, program);
  return absl::OkStatus();
}

// As well as the policy lets.
absl::Status Improve(const PackingPolicy& policy, v1::Program* program) {
  const bool searches = policy.effort == PackEffort::kFull && !OrdersDo(*program);
  return policy.pages == PagePolicy::kAlways ||
                 (policy.pages == PagePolicy::kWhereLoose && IsLoose(*program))
             ? ImproveByPages(policy, searches, program)
             : ImproveToFit(policy, searches, program);
}

// Whether waits may be worth what they cost. `unused` is what buffers in one piece each left.
bool MayEarn(const v1::Program& program, int64_t unused, int64_t bound) {
  if (program.device_limit_bytes() == 0) return WorthEarning(program, bound);
  const int64_t least = bound - bound / kSavedPart;
  return !Fits(program) && FitsWith(program, least) && IsWorth(unused, bound);
}

// The first of the waits with which little enough is unused, else those that need least, packed as
// well as may be; none if what they save is not worth it. True when the program was replaced.
absl::StatusOr<bool> Earn(const EmitInput& input, const v1::Program& bare, int64_t bound,
                          const PackingPolicy& policy, Graph* graph, v1::Program* program) {
  const std::vector<Sequence> sequences = graph->sequences;
  std::optional<v1::Program> best;
  for (const Waits& waits : kWaits) {
    graph->sequences = sequences;
    v1::Program other = bare;
    RETURN_IF_ERROR(Attempt(input, waits,
                            {.effort = PackEffort::kOrders, .only_to_fit = policy.only_to_fit},
                            graph, &other));
    if (!best || Better(other, *best)) best = std::move(other);
    if (!WorthEarning(*best, bound)) break;
  }
  if (WorthEarning(*best, bound) || MayPage(*best, policy))
    RETURN_IF_ERROR(Improve(policy, &*best));
  const int64_t saved = program->arenas(0).bytes() - best->arenas(0).bytes();
  if (!Better(*best, *program) || !IsWorth(saved, bound)) return false;
  *program = *std::move(best);
  return true;
}

}  // namespace

absl::Status EmitAndPlace(const EmitInput& input, const PackingPolicy& policy, Graph* graph,
                          v1::Program* program) {
  if (policy.effort == PackEffort::kQuick) {
    RETURN_IF_ERROR(Attempt(input, {}, {policy.effort}, graph, program));
    if (program->arenas().empty() || !MayPage(*program, policy)) return absl::OkStatus();
    const int64_t bound = program->arenas(0).lower_bound_bytes();
    if (program->device_limit_bytes() > 0 && !FitsWith(*program, bound)) return absl::OkStatus();
    return PlaceBetter({policy.effort, /*pages=*/true, /*packed=*/true}, program);
  }
  const v1::Program bare = *program;
  RETURN_IF_ERROR(Attempt(input, {},
                          {.effort = PackEffort::kOrders, .only_to_fit = policy.only_to_fit}, graph,
                          program));
  if (program->arenas().empty() || IsEnough(*program, policy)) return absl::OkStatus();
  std::vector<int64_t> bounds;  // by arena, of the program as it was first
  for (const v1::Arena& arena : program->arenas()) bounds.push_back(arena.lower_bound_bytes());
  const int64_t unused = program->arenas(0).bytes() - bounds[0];
  RETURN_IF_ERROR(Improve(policy, program));
  if (!MayEarn(*program, unused, bounds[0])) return absl::OkStatus();
  ASSIGN_OR_RETURN(const bool earned, Earn(input, bare, bounds[0], policy, graph, program));
  if (!earned) return absl::OkStatus();
  for (v1::Arena& arena : *program->mutable_arenas()) {
    arena.set_unearned_bound_bytes(bounds[arena.id()]);
  }
  return absl::OkStatus();
}

}  // namespace terrace::compiler
