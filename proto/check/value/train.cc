// SPDX-License-Identifier: Apache-2.0
#include "proto/check/value/train.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "base/status_macros.h"
#include "proto/check/instruction/refuse.h"
#include "proto/check/instruction/structure.h"
#include "proto/check/value/announced.h"
#include "proto/check/value/decoded_state.h"
#include "proto/check/value/fixed_point.h"
#include "proto/check/value/gradient.h"
#include "proto/check/value/lasting.h"
#include "proto/check/value/ranges.h"
#include "proto/check/value/residuals.h"
#include "proto/check/value/weights.h"
#include "proto/program/grid.h"
#include "proto/program/sequences.h"

namespace terrace::check {
namespace {

bool IsLoad(const v1::Instruction& instruction) {
  return instruction.kind_case() == v1::Instruction::kInput &&
         instruction.input().kind() == v1::LOAD_BATCH;
}

std::string WhereIs(const CheckedSequence& sequence, int i) {
  return Where(*sequence.sequence, sequence.sequence->instructions(i));
}

// ---- rules and micro-batches --------------------------------------------------------------------

int64_t PlayedBy(const CheckedSequence& train) {
  return train.written == nullptr ? static_cast<int64_t>(train.instructions.size())
                                  : train.written->played;
}

// The third number of the schedule is in (0, 1] at every step.
absl::Status CheckFactoredRules(const v1::StepRules& rules) {
  const bool adafactor = rules.optimizer() == v1::ADAFACTOR;
  if (adafactor ? !(std::isfinite(rules.beta2_decay()) && rules.beta2_decay() < 0)
                : rules.beta2_decay() != 0) {
    return Refuse(
        "rules.beta2_decay: got ", rules.beta2_decay(),
        adafactor ? ", must be below 0 with ADAFACTOR" : ", must be 0 but with ADAFACTOR");
  }
  if (adafactor || !rules.relative_step()) return absl::OkStatus();
  return Refuse("rules.relative_step: is true, must be false but with ADAFACTOR");
}

absl::Status CheckRules(const v1::Program& program, const CheckedSequence& train) {
  const v1::StepRules& rules = program.rules();
  const v1::Grid& grid = program.grid();
  const uint32_t data = AxisSize(grid, v1::DATA_SHARD) * AxisSize(grid, v1::DATA_REPLICA);
  if (rules.data_parallel() != data) {
    return Refuse("rules.data_parallel: got ", rules.data_parallel(), ", the grid has ", data,
                  " ranks that see different data");
  }
  if (rules.micro_batches() < 1 || rules.micro_batches() > PlayedBy(train)) {
    return Refuse("rules.micro_batches: got ", rules.micro_batches(),
                  ", must be 1 or more, each with its instructions");
  }
  if (rules.micro_batch() < 1 || rules.sequence_length() < 1 ||
      rules.sequence_length() > kBytesMax / rules.micro_batch()) {
    return Refuse("rules: micro_batch ", rules.micro_batch(), " of sequence_length ",
                  rules.sequence_length(), " is no number of tokens");
  }
  RETURN_IF_ERROR(CheckFactoredRules(rules));
  if (rules.pairs() && rules.micro_batch() % 2 != 0) {
    return Refuse("rules.micro_batch: got ", rules.micro_batch(),
                  ", must be even with rules.pairs: two sequences are a pair");
  }
  // In zig-zag each rank holds two pieces of a sequence.
  const int64_t pieces = int64_t{AxisSize(grid, v1::CONTEXT)} * (rules.context_zigzag() ? 2 : 1);
  const int64_t length = LengthOf(rules, *train.sequence);
  if (length % pieces == 0) return absl::OkStatus();
  return Refuse(train.sequence->name() == kTrain ? "rules.sequence_length: " : "sequence_length ",
                length, " must divide into ", pieces, " pieces for the ranks of the axis CONTEXT");
}

// Its name says how long the samples of a sequence are, and "train" has the longest: the buffers of
// "eval" and tables of positions are as long as these.
absl::Status CheckLengths(const v1::Program& program) {
  const int64_t longest = program.rules().sequence_length();
  bool trains = false, shorter = false;
  for (const v1::Sequence& sequence : program.sequences()) {
    const int64_t length = sequence.sequence_length();
    const bool bucket = IsTrain(sequence.name()) && sequence.name() != kTrain;
    trains = trains || sequence.name() == kTrain;
    shorter = shorter || bucket;
    const bool good =
        bucket ? length > 0 && length < longest && sequence.name() == TrainName(length, longest)
               : length == 0 || length == longest;
    if (good) continue;
    return Refuse("sequence '", sequence.name(), "': sequence_length is ", length,
                  bucket ? ", must be that of its name and below rules.sequence_length "
                         : ", must be 0 or rules.sequence_length ",
                  longest);
  }
  if (!shorter || trains) return absl::OkStatus();
  return Refuse("there is no sequence 'train' for samples of ", longest, " tokens");
}

absl::Status CheckMicroBatchExists(const v1::Program& program, const CheckedSequence& train,
                                   int i) {
  const v1::Instruction& instruction = train.sequence->instructions(i);
  const bool needed = IsLoad(instruction) || instruction.kind_case() == v1::Instruction::kTransfer;
  if (instruction.micro_batch() < static_cast<int64_t>(program.rules().micro_batches()) &&
      (!needed || instruction.micro_batch() >= 0))
    return absl::OkStatus();
  const std::vector<Access>& accesses = train.instructions[i].accesses;
  return Refuse(WhereIs(train, i),
                accesses.empty() ? "" : " with " + BufferText(program, accesses[0].buffer),
                ": micro-batch ", instruction.micro_batch(), " of ",
                program.rules().micro_batches(), " does not exist");
}

// Micro-batches that one instruction loads: from `first` on, `count` of them, a step of the loop
// apart.
struct Loaded {
  int64_t first = 0, count = 1;
  int instruction = 0;
};

// Which the instruction loads; the last iteration that was written out stands for all behind it.
Loaded LoadsOf(const CheckedSequence& train, int i) {
  Loaded loaded = {.first = train.sequence->instructions(i).micro_batch(), .instruction = i};
  if (train.written == nullptr) return loaded;
  for (const Repeat& repeat : train.written->repeats) {
    if (repeat.IterationAt(i) == repeat.shown - 1) loaded.count += repeat.left_out;
  }
  return loaded;
}

// Each of the micro-batches is loaded once.
absl::Status CheckLoadedOnce(const v1::Program& program, const CheckedSequence& train, int operand,
                             const std::vector<Loaded>& loads) {
  const bool loops = train.written != nullptr && !train.written->repeats.empty();
  const int64_t step = loops ? train.written->repeats[0].micro_batches : 1;
  const int64_t all = program.rules().micro_batches();
  std::map<int64_t, std::vector<Loaded>> by_rest;  // that is left when divided by the step
  for (const Loaded& loaded : loads) by_rest[loaded.first % step].push_back(loaded);
  for (int64_t rest = 0; rest < std::min(step, all); ++rest) {
    std::vector<Loaded>& of_rest = by_rest[rest];
    std::sort(of_rest.begin(), of_rest.end(),
              [](const Loaded& a, const Loaded& b) { return a.first < b.first; });
    int64_t next = rest, missing = -1;
    for (const Loaded& loaded : of_rest) {
      if (loaded.first > next && missing < 0) missing = next;
      if (loaded.first < next) {
        const v1::Instruction& instruction = train.sequence->instructions(loaded.instruction);
        return Refuse(WhereIs(train, loaded.instruction), ": loads micro-batch ", loaded.first,
                      " into ", BufferText(program, instruction.operands(operand).buffer()),
                      " a second time");
      }
      next = loaded.first + loaded.count * step;
    }
    if (next < all && missing < 0) missing = next;
    if (missing < 0) continue;
    return Refuse("'", train.sequence->name(), "': micro-batch ", missing, " of ", all,
                  " is never loaded");
  }
  return absl::OkStatus();
}

// Every micro-batch is loaded once, its tokens, its targets or both; a stage that loads one of them
// at all loads it of every micro-batch.
absl::Status CheckLoads(const v1::Program& program, const CheckedSequence& train,
                        StageFacts::Training* facts) {
  const v1::StepRules& rules = program.rules();
  const int64_t tokens = int64_t{rules.micro_batch()} * LengthOf(rules, *train.sequence) /
                         AxisSize(program.grid(), v1::CONTEXT);
  std::vector<Loaded> loads[2];
  for (int i = 0; i < static_cast<int>(train.instructions.size()); ++i) {
    const v1::Instruction& instruction = train.sequence->instructions(i);
    RETURN_IF_ERROR(CheckMicroBatchExists(program, train, i));
    if (!IsLoad(instruction)) continue;
    for (int k = 0; k < 2; ++k) {
      const v1::Operand& operand = instruction.operands(k);
      if (operand.access() == v1::ACCESS_UNSPECIFIED) continue;
      if (operand.shape(0) != tokens) {
        return Refuse(WhereIs(train, i), ": loads ", operand.shape(0), " tokens into ",
                      BufferText(program, operand.buffer()), ", a micro-batch has ", tokens);
      }
      loads[k].push_back(LoadsOf(train, i));
    }
  }
  for (int k = 0; k < 2; ++k) {
    if (!loads[k].empty()) RETURN_IF_ERROR(CheckLoadedOnce(program, train, k, loads[k]));
  }
  facts->loads_tokens = !loads[0].empty();
  facts->loads_targets = !loads[1].empty();
  if (program.stages() > 1 || (facts->loads_tokens && facts->loads_targets))
    return absl::OkStatus();
  return Refuse("'", train.sequence->name(), "': loads no ",
                facts->loads_tokens ? "targets" : "tokens");
}

// ---- sequences ----------------------------------------------------------------------------------

const CheckedSequence* Find(const std::vector<CheckedSequence>& sequences,
                            const std::string& name) {
  for (const CheckedSequence& sequence : sequences) {
    if (sequence.sequence->name() == name) return &sequence;
  }
  return nullptr;
}

absl::Status RunTrain(const v1::Program& program, const StateIndex& state,
                      const CheckedSequence& train, Flow* flow, StageFacts::Training* facts) {
  Gradients gradients(program, state, train, *flow, &facts->shared);
  Updates updates(program, state, train, *flow);
  Residuals residuals(program, state, train, *flow);
  const DecodedState decoded(program, state, train, *flow);
  FixedPoint point(program, train, flow);
  for (int i = 0; i < static_cast<int>(train.instructions.size()); ++i) {
    RETURN_IF_ERROR(point.Reach(i));
    RETURN_IF_ERROR(gradients.Check(i));
    RETURN_IF_ERROR(updates.Check(i));
    RETURN_IF_ERROR(residuals.Check(i));
    RETURN_IF_ERROR(decoded.Check(i));
    RETURN_IF_ERROR(gradients.CheckUnused(i));
    RETURN_IF_ERROR(flow->Step(i));
  }
  RETURN_IF_ERROR(point.Reach(static_cast<int>(train.instructions.size())));
  RETURN_IF_ERROR(gradients.CheckEnd());
  RETURN_IF_ERROR(residuals.CheckComplete());
  return updates.CheckComplete();
}

absl::Status RunOther(const v1::Program& program, const CheckedSequence& sequence, Flow* flow) {
  for (int i = 0; i < static_cast<int>(sequence.instructions.size()); ++i) {
    const v1::Instruction& instruction = sequence.sequence->instructions(i);
    if (instruction.kind_case() == v1::Instruction::kOutput &&
        (instruction.output().kind() == v1::LOSS_TOTAL ||
         instruction.output().kind() == v1::PREFERENCE)) {
      RETURN_IF_ERROR(CheckSameEverywhere(program, sequence, *flow, i));
    }
    RETURN_IF_ERROR(flow->Step(i));
  }
  return absl::OkStatus();
}

absl::StatusOr<StageFacts> Run(const v1::Program& program, const StateIndex& state,
                               const std::vector<CheckedSequence>& sequences,
                               bool transfers_in_parts) {
  StageFacts facts = {.transfers_in_parts = transfers_in_parts};
  Values values(program.grid());
  const Flow fresh(program, transfers_in_parts, &values);
  const std::vector<ByteMap> found = FoundByTraining(program, sequences);
  Flow restored = fresh;
  if (const CheckedSequence* restore = Find(sequences, "restore")) {
    restored.Begin(restore);
    RETURN_IF_ERROR(RunOther(program, *restore, &restored));
  }
  for (const CheckedSequence& sequence : sequences) {
    const std::string& name = sequence.sequence->name();
    if (name == "restore") continue;
    Flow flow = restored;
    flow.Begin(&sequence);
    if (IsTrain(name)) {
      StageFacts::Training& training = facts.training[name];
      RETURN_IF_ERROR(CheckRules(program, sequence));
      RETURN_IF_ERROR(CheckLoads(program, sequence, &training));
      RETURN_IF_ERROR(RunTrain(program, state, sequence, &flow, &training));
      RETURN_IF_ERROR(CheckRenewed(program, sequence, found, restored, flow));
    } else {
      RETURN_IF_ERROR(RunOther(program, sequence, &flow));
    }
    facts.sums[name] = flow.stage_sums();
    facts.sent[name] = flow.sent();
    facts.received[name] = flow.received();
  }
  return facts;
}

bool HasTransfers(const std::vector<CheckedSequence>& sequences) {
  for (const CheckedSequence& sequence : sequences) {
    for (const v1::Instruction& instruction : sequence.sequence->instructions()) {
      if (instruction.kind_case() == v1::Instruction::kTransfer) return true;
    }
  }
  return false;
}

}  // namespace

absl::StatusOr<StageFacts> CheckTraining(const v1::Program& program,
                                         const std::vector<CheckedSequence>& sequences) {
  const StateIndex state(program);
  RETURN_IF_ERROR(CheckLengths(program));
  for (const CheckedSequence& sequence : sequences) {
    RETURN_IF_ERROR(CheckPersistentWrites(program, state, sequence));
  }
  absl::StatusOr<StageFacts> whole = Run(program, state, sequences, false);
  const bool splits = AxisSize(program.grid(), v1::TENSOR) > 1 && HasTransfers(sequences);
  if (!splits || (whole.ok() && FrozenTensors(program).empty())) return whole;
  // What comes from another stage may be split over TENSOR. All stages must agree in the end, so a
  // wrong guess is refused by one of them.
  absl::StatusOr<StageFacts> parts = Run(program, state, sequences, true);
  if (whole.ok()) whole->transfers_either_way = parts.ok();
  return parts.ok() && !whole.ok() ? parts : whole;
}

}  // namespace terrace::check
