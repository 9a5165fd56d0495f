// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/earn.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "coordinator/compiler/insertions.h"
#include "coordinator/compiler/place.h"
#include "coordinator/compiler/streams.h"

namespace terrace::compiler {
namespace {

// Beyond one part in this many over the bound a wait is worth what it costs, unless it is about
// less than kLeastBytes.
constexpr int64_t kWorthPart = 100;
constexpr int64_t kLeastBytes = int64_t{1} << 20;

// What the packing of the device leaves unused even at its fullest moment.
bool WorthEarning(const v1::Program& program, int64_t bound) {
  const int64_t unused = program.arenas(0).bytes() - bound;
  return unused > std::max(bound / kWorthPart, kLeastBytes);
}

// Emits and packs without the search, which is for what stays as it is.
absl::Status Attempt(const EmitInput& input, int retire_marks, PackEffort effort, Graph* graph,
                     v1::Program* program) {
  AssignStreams(retire_marks, graph);
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

}  // namespace

absl::Status EmitAndPlace(const EmitInput& input, PackEffort effort, Graph* graph,
                          v1::Program* program) {
  if (effort == PackEffort::kQuick) return Attempt(input, kRetireMarks, effort, graph, program);
  const v1::Program bare = *program;
  RETURN_IF_ERROR(Attempt(input, kRetireMarks, PackEffort::kOrders, graph, program));
  if (program->arenas().empty()) return absl::OkStatus();
  std::vector<int64_t> bounds;  // by arena, of the program as it was first
  for (const v1::Arena& arena : program->arenas()) bounds.push_back(arena.lower_bound_bytes());
  bool earned = false;
  for (const bool late_gathers : {false, true}) {
    if (!WorthEarning(*program, bounds[0])) break;
    if (late_gathers) {
      for (Sequence& sequence : graph->sequences) HalveLeads(*graph, &sequence.nodes);
    }
    v1::Program other = bare;
    RETURN_IF_ERROR(Attempt(input, kRetireMarks - 1, PackEffort::kOrders, graph, &other));
    if (!Better(other, *program)) continue;
    *program = std::move(other);
    earned = true;
  }
  const bool searches =
      effort == PackEffort::kFull && (!earned || WorthEarning(*program, bounds[0]));
  if (searches && !OrdersDo(*program)) RETURN_IF_ERROR(PlaceBuffers(program));
  for (v1::Arena& arena : *program->mutable_arenas()) {
    if (earned) arena.set_unearned_bound_bytes(bounds[arena.id()]);
  }
  return absl::OkStatus();
}

}  // namespace terrace::compiler
