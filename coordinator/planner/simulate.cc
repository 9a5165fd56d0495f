// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/simulate.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/side_by_side.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "coordinator/planner/cache_reuse.h"
#include "coordinator/planner/instruction_time.h"
#include "coordinator/planner/steady_play.h"
#include "proto/grid.h"
#include "proto/played_program.h"

namespace terrace {
namespace {

const v1::Sequence* FindSequence(const v1::Program& program, std::string_view name) {
  for (const v1::Sequence& sequence : program.sequences()) {
    if (sequence.name() == name) return &sequence;
  }
  return nullptr;
}

absl::StatusOr<StageInput> ReadStage(const v1::Program& program, std::string_view name,
                                     const InstructionTime& time,
                                     const v1::HardwareProfile& profile) {
  StageInput input = {.program = &program, .sequence = FindSequence(program, name)};
  if (input.sequence == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("stage ", program.stage(), ", sequence '",
                                                   Absl(name),
                                                   "': the program has none of that name"));
  }
  input.seconds.reserve(input.sequence->instructions_size());
  const std::vector<double> cached = CachedShares(program, *input.sequence, profile.cache_bytes());
  for (const v1::Instruction& instruction : input.sequence->instructions()) {
    const absl::StatusOr<double> seconds =
        time.Seconds(program, instruction, cached[input.seconds.size()]);
    if (!seconds.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("stage ", program.stage(), ", instruction ",
                                                     input.seconds.size(), ": ",
                                                     seconds.status().message()));
    }
    input.seconds.push_back(*seconds);
    input.contention.push_back(time.Contention(program, instruction, *seconds));
    input.wake.push_back(time.WakeSeconds(instruction));
  }
  return input;
}

// What a run means for each stage.
class Summary {
 public:
  Summary(const std::vector<StageInput>& inputs,
          const std::vector<std::vector<RunInstruction>>& run)
      : inputs_(inputs), run_(run) {}

  Simulation Make() && {
    for (int stage = 0; stage < static_cast<int>(inputs_.size()); ++stage) {
      for (int i = 0; i < static_cast<int>(run_[stage].size()); ++i) {
        if (run_[stage][i].end_seconds <= result_.step_seconds) continue;
        result_.step_seconds = run_[stage][i].end_seconds;
        last_ = {stage, i};
      }
    }
    for (int stage = 0; stage < static_cast<int>(inputs_.size()); ++stage) AddStage(stage);
    result_.played_seconds = result_.step_seconds;
    Conclude(&result_);
    return std::move(result_);
  }

 private:
  void AddStage(int index) {
    const v1::Program& program = *inputs_[index].program;
    SimulatedStage stage = {.stage = program.stage(), .instructions = run_[index]};
    for (const v1::Stream& stream : program.streams()) stage.streams.push_back({stream.name()});
    AddInstructions(index, &stage);
    stage.memory = MemoryCurve(program, *inputs_[index].sequence, run_[index]);
    for (const MemoryPoint& point : stage.memory) {
      stage.peak_bytes = std::max(stage.peak_bytes, point.bytes);
    }
    result_.stages.push_back(std::move(stage));
  }

  void AddInstructions(int index, SimulatedStage* stage) const {
    const StageInput& input = inputs_[index];
    double free = 0;  // the compute stream, from then on
    for (int i = 0; i < static_cast<int>(run_[index].size()); ++i) {
      const v1::Instruction& instruction = input.sequence->instructions(i);
      const RunInstruction& run = run_[index][i];
      const double seconds = run.end_seconds - run.start_seconds;
      SimulatedStream& stream = stage->streams[instruction.stream()];
      stream.busy_seconds += seconds;
      if (instruction.phase() == v1::OPTIMIZER_STEP) stream.optimizer_seconds += seconds;
      if (input.program->streams(instruction.stream()).kind() != v1::COMPUTE) continue;
      stage->compute_seconds += seconds;
      if (v1::Phase_IsValid(instruction.phase()))
        stage->phase_seconds[instruction.phase()] += seconds;
      if (instruction.phase() == v1::OPTIMIZER_STEP) stage->optimizer_seconds += seconds;
      DivideIdle(index, free, run.after, stage);
      free = run.end_seconds;
    }
    DivideIdle(index, free, last_, stage);
  }

  // The compute stream idled from `from` to the end of `cause`: walks back along what that waited
  // for.
  void DivideIdle(int stage, double from, InstructionRef cause, SimulatedStage* result) const {
    while (cause.stage >= 0) {
      const RunInstruction& run = run_[cause.stage][cause.instruction];
      if (run.end_seconds <= from) return;
      const double seconds = run.end_seconds - std::max(from, run.start_seconds);
      if (cause.stage == stage ? Communicates(cause) : BetweenStages(cause)) {
        result->exposed_communication_seconds += seconds;
      } else if (cause.stage != stage) {
        result->bubble_seconds += seconds;
      } else if (Offloads(cause)) {
        result->exposed_offload_seconds += seconds;
        if (At(cause).phase() == v1::OPTIMIZER_STEP) {
          result->exposed_optimizer_seconds += seconds;
        }
      } else {
        result->loading_seconds += seconds;
      }
      cause = run.after;
    }
  }

  const v1::Instruction& At(InstructionRef ref) const {
    return inputs_[ref.stage].sequence->instructions(ref.instruction);
  }
  bool Communicates(InstructionRef ref) const {
    return At(ref).has_collective() || At(ref).has_transfer();
  }
  bool Offloads(InstructionRef ref) const {
    const uint32_t stream = At(ref).stream();
    return At(ref).has_copy() ||
           inputs_[ref.stage].program->streams(static_cast<int>(stream)).kind() == v1::HOST_COMPUTE;
  }
  bool BetweenStages(InstructionRef ref) const {
    const v1::Program& program = *inputs_[ref.stage].program;
    return At(ref).has_transfer() ||
           (At(ref).has_collective() &&
            HasAxis(program.groups(At(ref).collective().group()), v1::PIPELINE));
  }

  const std::vector<StageInput>& inputs_;
  const std::vector<std::vector<RunInstruction>>& run_;
  InstructionRef last_;  // ends the step
  Simulation result_;
};

// Plays the step in which each loop has so many iterations fewer.
absl::StatusOr<Simulation> Play(absl::Span<const v1::Program> stages, std::string_view sequence,
                                int64_t leave_out, const InstructionTime& time,
                                const v1::HardwareProfile& profile) {
  std::vector<std::optional<PlayedProgram>> played(stages.size());
  std::vector<absl::StatusOr<StageInput>> read(stages.size());
  SideBySide(stages.size(), [&](size_t s) {
    played[s].emplace(&stages[s], leave_out);
    read[s] = ReadStage(played[s]->program(), sequence, time, profile);
  });
  std::vector<StageInput> inputs;
  for (absl::StatusOr<StageInput>& stage : read) {
    ASSIGN_OR_RETURN(inputs.emplace_back(), std::move(stage));
  }
  JointRun run(inputs, profile);
  RETURN_IF_ERROR(run.Run());
  Simulation simulation = Summary(inputs, run.instructions()).Make();
  for (size_t i = 0; i < played.size(); ++i) simulation.stages[i].written = played[i]->written();
  return simulation;
}

absl::Status CheckStages(absl::Span<const v1::Program> stages) {
  std::set<uint32_t> seen;
  for (const v1::Program& program : stages) {
    if (!seen.insert(program.stage()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("stage ", program.stage(), " is given twice; one program a stage"));
    }
    for (const v1::Sequence& sequence : program.sequences()) {
      if (LoopsFit(sequence)) continue;
      return absl::InvalidArgumentError(absl::StrCat("stage ", program.stage(), ", sequence '",
                                                     sequence.name(),
                                                     "': its loops are not parts of it in order"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Simulation> Simulate(absl::Span<const v1::Program> stages, std::string_view sequence,
                                    const v1::HardwareProfile& profile) {
  RETURN_IF_ERROR(CheckStages(stages));
  const InstructionTime time(profile);
  const auto play = [&](int64_t leave_out) {
    return Play(stages, sequence, leave_out, time, profile);
  };
  if (std::none_of(stages.begin(), stages.end(), &HasLoops)) return play(0);
  return PlayUntilSteady(stages, sequence, play);
}

absl::StatusOr<Simulation> Simulate(const v1::Program& program, std::string_view sequence,
                                    const v1::HardwareProfile& profile) {
  return Simulate(absl::MakeConstSpan(&program, 1), sequence, profile);
}

}  // namespace terrace
