// SPDX-License-Identifier: Apache-2.0
#include "coordinator/simulator/simulate.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/side_by_side.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "coordinator/simulator/cache_reuse.h"
#include "coordinator/simulator/instruction_time.h"
#include "coordinator/simulator/steady_play.h"
#include "proto/program/grid.h"
#include "proto/program/loops.h"
#include "proto/program/operands.h"
#include "proto/program/played_program.h"

namespace terrace {
namespace {

const v1::Sequence* FindSequence(const v1::Program& program, std::string_view name) {
  for (const v1::Sequence& sequence : program.sequences()) {
    if (sequence.name() == name) return &sequence;
  }
  return nullptr;
}

// What the instructions of one stage take, for plays of all lengths.
class StageTimes {
 public:
  static absl::StatusOr<StageTimes> Make(const v1::Program& program, std::string_view name,
                                         const InstructionTime& time, int64_t cache_bytes) {
    const v1::Sequence* sequence = FindSequence(program, name);
    if (sequence == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("stage ", program.stage(), ", sequence '",
                                                     Absl(name),
                                                     "': the program has none of that name"));
    }
    StageTimes times(program, *sequence, time, cache_bytes);
    for (int i = 0; i < sequence->instructions_size(); ++i) {
      const v1::Instruction& instruction = sequence->instructions(i);
      ASSIGN_OR_RETURN(const double seconds, times.SecondsOf(instruction, i, 0));
      times.seconds_.push_back(seconds);
      times.contention_.push_back(time.Contention(program, instruction, seconds));
      times.wake_.push_back(time.WakeSeconds(instruction));
    }
    return times;
  }

  // With so many iterations of each loop fewer.
  absl::StatusOr<StageInput> Input(int64_t leave_out) const {
    StageInput input = {.program = program_,
                        .sequence = sequence_,
                        .order = OrderOf(*sequence_, index_, program_->streams_size(), leave_out)};
    ASSIGN_OR_RETURN(const std::vector<double> seconds, SecondsWithout(leave_out));
    const std::vector<double> cached = Cached(leave_out);
    for (int place = 0; place < input.size(); ++place) {
      const int i = input.order.played[place].instruction;
      double of_place = seconds[i];
      if (!cached.empty() && cached[place] > 0) {
        ASSIGN_OR_RETURN(of_place, SecondsOf(Shortened(i, leave_out), i, cached[place]));
      }
      input.seconds.push_back(of_place);
      input.contention.push_back(contention_[i]);
      input.wake.push_back(wake_[i]);
    }
    return input;
  }

 private:
  StageTimes(const v1::Program& program, const v1::Sequence& sequence, const InstructionTime& time,
             int64_t cache_bytes)
      : program_(&program),
        sequence_(&sequence),
        time_(&time),
        cache_bytes_(cache_bytes),
        index_(sequence) {}

  absl::StatusOr<double> SecondsOf(const v1::Instruction& instruction, int id,
                                   double cached) const {
    absl::StatusOr<double> seconds = time_->Seconds(*program_, instruction, cached);
    if (seconds.ok()) return seconds;
    return absl::InvalidArgumentError(absl::StrCat("stage ", program_->stage(), ", instruction ",
                                                   id, ": ", seconds.status().message()));
  }

  // What reads a row of each micro-batch has fewer of them.
  bool HasFewerRows(int i) const {
    bool fewer = false;
    ForEachOperand(sequence_->instructions(i), [&](const v1::Operand& operand) {
      fewer = fewer || index_.IsAllRows(operand, i);
    });
    return fewer;
  }
  v1::Instruction Shortened(int i, int64_t leave_out) const {
    v1::Instruction instruction = sequence_->instructions(i);
    ForEachMutableOperand(&instruction, [&](v1::Operand* operand) {
      if (index_.IsAllRows(*operand, i))
        operand->set_shape(0, operand->shape(0) - index_.RowsOf(leave_out));
    });
    return instruction;
  }

  absl::StatusOr<std::vector<double>> SecondsWithout(int64_t leave_out) const {
    std::vector<double> seconds = seconds_;
    for (int i = 0; i < sequence_->instructions_size(); ++i) {
      if (leave_out == 0 || !HasFewerRows(i)) continue;
      ASSIGN_OR_RETURN(seconds[i], SecondsOf(Shortened(i, leave_out), i, 0));
    }
    return seconds;
  }

  // By place; empty: nothing is found in a cache.
  std::vector<double> Cached(int64_t leave_out) const {
    if (cache_bytes_ <= 0) return {};
    const PlayedProgram played(program_, leave_out);
    return CachedShares(played.program(), *FindSequence(played.program(), sequence_->name()),
                        cache_bytes_);
  }

  const v1::Program* program_;
  const v1::Sequence* sequence_;
  const InstructionTime* time_;
  int64_t cache_bytes_;
  LoopIndex index_;
  std::vector<double> seconds_, contention_, wake_;  // by instruction of the sequence
};

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
    SimulatedStage stage = {.stage = program.stage(),
                            .played = inputs_[index].order.played,
                            .instructions = run_[index]};
    for (const v1::Stream& stream : program.streams()) stage.streams.push_back({stream.name()});
    AddInstructions(index, &stage);
    result_.stages.push_back(std::move(stage));
  }

  void AddInstructions(int index, SimulatedStage* stage) const {
    const StageInput& input = inputs_[index];
    double free = 0;  // the compute stream, from then on
    for (int i = 0; i < static_cast<int>(run_[index].size()); ++i) {
      const v1::Instruction& instruction = input.At(i);
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
    return inputs_[ref.stage].At(ref.instruction);
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

absl::StatusOr<std::vector<StageTimes>> TimeStages(absl::Span<const v1::Program> stages,
                                                   std::string_view sequence,
                                                   const InstructionTime& time,
                                                   const v1::HardwareProfile& profile) {
  std::vector<std::optional<absl::StatusOr<StageTimes>>> timed(stages.size());
  SideBySide(stages.size(), [&](size_t s) {
    timed[s].emplace(StageTimes::Make(stages[s], sequence, time, profile.cache_bytes()));
  });
  std::vector<StageTimes> times;
  for (std::optional<absl::StatusOr<StageTimes>>& stage : timed) {
    RETURN_IF_ERROR(stage->status());
    times.push_back(**std::move(stage));
  }
  return times;
}

// Plays the step in which each loop has so many iterations fewer.
absl::StatusOr<Simulation> Play(const std::vector<StageTimes>& stages, int64_t leave_out,
                                const v1::HardwareProfile& profile) {
  std::vector<absl::StatusOr<StageInput>> read(stages.size());
  SideBySide(stages.size(), [&](size_t s) { read[s] = stages[s].Input(leave_out); });
  std::vector<StageInput> inputs;
  for (absl::StatusOr<StageInput>& stage : read) {
    ASSIGN_OR_RETURN(inputs.emplace_back(), std::move(stage));
  }
  JointRun run(inputs, profile);
  RETURN_IF_ERROR(run.Run());
  return Summary(inputs, run.instructions()).Make();
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
  ASSIGN_OR_RETURN(const std::vector<StageTimes> times,
                   TimeStages(stages, sequence, time, profile));
  const auto play = [&](int64_t leave_out) { return Play(times, leave_out, profile); };
  if (std::none_of(stages.begin(), stages.end(), &HasLoops)) return play(0);
  return PlayUntilSteady(stages, sequence, play);
}

absl::StatusOr<Simulation> Simulate(const v1::Program& program, std::string_view sequence,
                                    const v1::HardwareProfile& profile) {
  return Simulate(absl::MakeConstSpan(&program, 1), sequence, profile);
}

}  // namespace terrace
