// SPDX-License-Identifier: Apache-2.0
#include "coordinator/simulator/steady_play.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "proto/program/loops.h"

namespace terrace {
namespace {

// What so many iterations take one stream may differ from what it takes another by this part of it:
// seconds of the whole step are then as exact.
constexpr double kSteady = 1e-5;
// No play has more instructions than these in all stages.
constexpr int64_t kPlayedMost = 200'000;

// Iterations by which the second play is longer than the first. What alternates from iteration to
// iteration, between two or four times, say, is alike after so many.
constexpr int64_t kFirstIterations = 16;

// Iterations that the shortest play leaves out of each loop. Waits do not ask where values lie, so
// it is no multiple of a turn of the slots.
int64_t MostLeftOut(absl::Span<const v1::Program> stages) {
  std::optional<int64_t> least;
  for (const v1::Program& program : stages) {
    if (!HasLoops(program)) continue;
    const int64_t most = IterationsToLeaveOut(program);
    least = std::min(least.value_or(most), most);
  }
  return least.value_or(0);
}

// Instructions of an iteration of all loops of all stages.
int64_t BodyInstructions(absl::Span<const v1::Program> stages, std::string_view name) {
  int64_t count = 0;
  for (const v1::Program& program : stages) {
    for (const v1::Sequence& sequence : program.sequences()) {
      if (sequence.name() != name) continue;
      for (const v1::Loop& loop : sequence.loops()) count += loop.count();
    }
  }
  return count;
}

// By how much a stream ends its last iteration of a loop later in the longer play.
void AddShifts(const SimulatedStage& shorter, const SimulatedStage& longer,
               const v1::Program& program, std::string_view name,
               std::map<int, std::vector<double>>* shifts) {
  for (const v1::Sequence& sequence : program.sequences()) {
    if (sequence.name() != name || sequence.loops_size() == 0) continue;
    const LoopIndex index(sequence);
    // The last iteration that a play has of each instruction.
    const auto ends = [&](const SimulatedStage& stage) {
      std::vector<double> end(sequence.instructions_size(), 0);
      for (size_t i = 0; i < stage.played.size(); ++i)
        end[stage.played[i].instruction] = stage.instructions[i].end_seconds;
      return end;
    };
    const std::vector<double> before = ends(shorter), after = ends(longer);
    for (int i = 0; i < sequence.instructions_size(); ++i) {
      if (const int loop = index.LoopOf(i); loop != kNoLoop)
        (*shifts)[loop].push_back(after[i] - before[i]);
    }
  }
}

bool IsSteady(absl::Span<const v1::Program> stages, std::string_view name,
              const Simulation& shorter, const Simulation& longer) {
  std::map<int, std::vector<double>> shifts;  // by loop
  for (size_t i = 0; i < stages.size(); ++i)
    AddShifts(shorter.stages[i], longer.stages[i], stages[i], name, &shifts);
  return std::all_of(shifts.begin(), shifts.end(), [](const auto& loop) {
    const auto [least, most] = std::minmax_element(loop.second.begin(), loop.second.end());
    return *most - *least <= kSteady * std::abs(*most);
  });
}

constexpr double SimulatedStage::*kStageSeconds[] = {
    &SimulatedStage::compute_seconds,          &SimulatedStage::exposed_communication_seconds,
    &SimulatedStage::exposed_offload_seconds,  &SimulatedStage::bubble_seconds,
    &SimulatedStage::loading_seconds,          &SimulatedStage::optimizer_seconds,
    &SimulatedStage::exposed_optimizer_seconds};

// `times` the difference between the two is what the whole step has beyond the longer.
void AddRest(const Simulation& shorter, double times, Simulation* longer) {
  const auto add = [times](double before, double* seconds) {
    *seconds = std::max(0.0, *seconds + times * (*seconds - before));
  };
  add(shorter.step_seconds, &longer->step_seconds);
  for (size_t i = 0; i < longer->stages.size(); ++i) {
    SimulatedStage& stage = longer->stages[i];
    const SimulatedStage& before = shorter.stages[i];
    for (const auto seconds : kStageSeconds) add(before.*seconds, &(stage.*seconds));
    for (size_t phase = 0; phase < stage.phase_seconds.size(); ++phase)
      add(before.phase_seconds[phase], &stage.phase_seconds[phase]);
    for (size_t k = 0; k < stage.streams.size(); ++k) {
      add(before.streams[k].busy_seconds, &stage.streams[k].busy_seconds);
      add(before.streams[k].optimizer_seconds, &stage.streams[k].optimizer_seconds);
    }
  }
}

// Pictures are of the shortest play.
void Show(Simulation shown, int64_t left_out, Simulation* simulation) {
  simulation->played_seconds = shown.played_seconds;
  simulation->left_out = left_out;
  for (size_t i = 0; i < simulation->stages.size(); ++i) {
    SimulatedStage& stage = simulation->stages[i];
    stage.played = std::move(shown.stages[i].played);
    stage.instructions = std::move(shown.stages[i].instructions);
  }
}

}  // namespace

void Conclude(Simulation* simulation) {
  double compute = 0, bubble = 0;
  for (SimulatedStage& stage : simulation->stages) {
    if (stage.compute_seconds > 0)
      stage.bubble_ratio = stage.bubble_seconds / stage.compute_seconds;
    compute += stage.compute_seconds;
    bubble += stage.bubble_seconds;
    const auto most = [](double seconds, double* of_all) { *of_all = std::max(*of_all, seconds); };
    most(stage.compute_seconds, &simulation->compute_seconds);
    most(stage.optimizer_seconds, &simulation->optimizer_seconds);
    most(stage.exposed_communication_seconds, &simulation->exposed_communication_seconds);
    most(stage.exposed_offload_seconds, &simulation->exposed_offload_seconds);
  }
  if (compute > 0) simulation->bubble_ratio = bubble / compute;
}

absl::StatusOr<Simulation> PlayUntilSteady(absl::Span<const v1::Program> stages,
                                           std::string_view sequence, const PlayStep& play) {
  const int64_t leave_out = MostLeftOut(stages);
  ASSIGN_OR_RETURN(Simulation shown, play(leave_out));
  int64_t played = 0;
  for (const SimulatedStage& stage : shown.stages)
    played += static_cast<int64_t>(stage.instructions.size());
  const int64_t body = BodyInstructions(stages, sequence);
  Simulation longer = shown;
  int64_t left_out = leave_out;
  for (int64_t more = kFirstIterations; left_out > 0; more *= 2) {
    more = std::min(more, left_out);
    const Simulation shorter = std::move(longer);
    ASSIGN_OR_RETURN(longer, play(left_out - more));
    left_out -= more;
    played += more * body;
    const bool last = played + 2 * more * body > kPlayedMost;
    if (left_out == 0 || (!last && !IsSteady(stages, sequence, shorter, longer))) continue;
    AddRest(shorter, static_cast<double>(left_out) / static_cast<double>(more), &longer);
    break;
  }
  Show(std::move(shown), leave_out, &longer);
  Conclude(&longer);
  return longer;
}

}  // namespace terrace
