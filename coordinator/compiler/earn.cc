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
#include "coordinator/compiler/streams.h"

namespace terrace::compiler {
namespace {

// One part in this many of the bound is worth what waits cost, unless that is less than
// kLeastBytes.
constexpr int64_t kWorthPart = 100;
constexpr int64_t kLeastBytes = int64_t{1} << 20;

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

// Nothing is gained by needing less.
bool FitsAnyway(const v1::Program& program) {
  const int64_t bytes = program.arenas(0).bytes() + program.external_bytes();
  return program.device_limit_bytes() > 0 && bytes <= program.device_limit_bytes();
}

// Emits and packs.
absl::Status Attempt(const EmitInput& input, const Waits& waits, PackEffort effort, Graph* graph,
                     v1::Program* program) {
  if (waits.late_gathers) {
    for (Sequence& sequence : graph->sequences) HalveLeads(*graph, &sequence.nodes);
  }
  AssignStreams(waits.retire_marks, graph);
  RETURN_IF_ERROR(Emit(input, program));
  return PlaceBuffers(program, effort);
}

// The search would start below this.
bool OrdersDo(const v1::Program& program) {
  return std::all_of(program.arenas().begin(), program.arenas().end(), [](const v1::Arena& arena) {
    return arena.bytes() == arena.lower_bound_bytes();
  });
}

// True when `other` needs less of the device and no more of anything else.
bool Better(const v1::Program& other, const v1::Program& program) {
  for (int i = 1; i < program.arenas_size(); ++i) {
    if (other.arenas(i).bytes() > program.arenas(i).bytes()) return false;
  }
  return other.arenas(0).bytes() < program.arenas(0).bytes();
}

// The first of the waits with which little enough is unused, else those that need least, searched
// as well; none if what they save is not worth it. True when the program was replaced.
absl::StatusOr<bool> Earn(const EmitInput& input, const v1::Program& bare, int64_t bound,
                          bool searches, Graph* graph, v1::Program* program) {
  const std::vector<Sequence> sequences = graph->sequences;
  std::optional<v1::Program> best;
  for (const Waits& waits : kWaits) {
    graph->sequences = sequences;
    v1::Program other = bare;
    RETURN_IF_ERROR(Attempt(input, waits, PackEffort::kOrders, graph, &other));
    if (!best || Better(other, *best)) best = std::move(other);
    if (!WorthEarning(*best, bound)) break;
  }
  if (searches && WorthEarning(*best, bound)) RETURN_IF_ERROR(PlaceBuffers(&*best));
  const int64_t saved = program->arenas(0).bytes() - best->arenas(0).bytes();
  if (!Better(*best, *program) || !IsWorth(saved, bound)) return false;
  *program = *std::move(best);
  return true;
}

}  // namespace

absl::Status EmitAndPlace(const EmitInput& input, PackEffort effort, Graph* graph,
                          v1::Program* program) {
  if (effort == PackEffort::kQuick) return Attempt(input, {}, effort, graph, program);
  const v1::Program bare = *program;
  RETURN_IF_ERROR(Attempt(input, {}, PackEffort::kOrders, graph, program));
  if (program->arenas().empty()) return absl::OkStatus();
  std::vector<int64_t> bounds;  // by arena, of the program as it was first
  for (const v1::Arena& arena : program->arenas()) bounds.push_back(arena.lower_bound_bytes());
  const bool searches = effort == PackEffort::kFull;
  if (searches && !OrdersDo(*program)) RETURN_IF_ERROR(PlaceBuffers(program));
  if (FitsAnyway(*program) || !WorthEarning(*program, bounds[0])) return absl::OkStatus();
  ASSIGN_OR_RETURN(const bool earned, Earn(input, bare, bounds[0], searches, graph, program));
  if (!earned) return absl::OkStatus();
  for (v1::Arena& arena : *program->mutable_arenas()) {
    arena.set_unearned_bound_bytes(bounds[arena.id()]);
  }
  return absl::OkStatus();
}

}  // namespace terrace::compiler
