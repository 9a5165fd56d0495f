// SPDX-License-Identifier: Apache-2.0
#include "worker/vm/prepared_program.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/reworded.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "proto/program/allocation_events.h"
#include "proto/program/loops.h"
#include "proto/program/op_codec.h"
#include "worker/vm/handlers.h"
#include "worker/vm/resolve_waits.h"

namespace terrace {

absl::Status InstructionError(absl::StatusCode code, const v1::Instruction& instruction,
                              std::string_view problem) {
  return absl::Status(code, absl::StrCat("instruction ", instruction.id(), " (", instruction.text(),
                                         "): ", Absl(problem)));
}

absl::Status InIteration(const absl::Status& status, const PlayedCursor& at) {
  if (status.ok() || at.loop() == nullptr) return status;
  return Reworded(status, absl::StrCat("iteration ", at.iteration(), " of 0 to ",
                                       at.loop()->trips - 1, ": ", status.message()));
}

WorkKind WorkOf(const PreparedInstruction& instruction, v1::StreamKind stream) {
  if (instruction.group != nullptr) return WorkKind::kCommunication;
  return instruction.copied_bytes > 0 || stream == v1::HOST_COMPUTE ? WorkKind::kOffload
                                                                    : WorkKind::kCompute;
}

namespace {

// Where it is in iteration 0, and how it moves from there.
absl::Status ResolveOperand(const v1::Program& program, const LoopIndex& loops,
                            const v1::Operand& operand, std::span<std::byte* const> arenas,
                            PreparedInstruction* out) {
  ASSIGN_OR_RETURN(const kernels::TensorShape shape, DecodeShape(operand));
  kernels::TensorView& view = out->operands.emplace_back();
  static_cast<kernels::TensorShape&>(view) = shape;
  if (view.absent()) return absl::OkStatus();
  const auto instruction = static_cast<int>(out->source->id());
  ASSIGN_OR_RETURN(const OperandPlace place, PlaceOf(program, loops, instruction, operand));
  const v1::Buffer& buffer = program.buffers(static_cast<int>(operand.buffer()));
  if (arenas[place.arena] != nullptr && !IsDynamic(program, buffer))
    view.data = arenas[place.arena] + place.offset;
  if (auto move = MoveOf(program, loops, instruction, operand, arenas); move.has_value()) {
    move->index = static_cast<int>(out->operands.size()) - 1;
    out->moves.push_back(*std::move(move));
  }
  return absl::OkStatus();
}

// Only copies know what to do with an operand that has no address, and only queues and groups with
// one that the host must not touch.
absl::Status CheckAddresses(const v1::Program& program, const PrepareOptions& options,
                            const PreparedInstruction& instruction) {
  const std::span<std::byte* const> arenas = options.arenas;
  const bool touches = instruction.queue == nullptr && !instruction.source->has_collective() &&
                       !instruction.source->has_transfer();
  const bool foreign = options.backend != nullptr && !options.backend->device_is_host();
  for (size_t i = 0; i < instruction.operands.size() && touches && foreign; ++i) {
    if (instruction.operands[i].absent()) continue;
    const uint32_t buffer = instruction.source->operands(static_cast<int>(i)).buffer();
    const uint32_t arena = program.buffers(static_cast<int>(buffer)).arena();
    if (program.arenas(static_cast<int>(arena)).tier() != v1::DEVICE) continue;
    return InstructionError(
        absl::StatusCode::kInvalidArgument, *instruction.source,
        absl::StrCat("operand ", i, " lies on the device, its stream runs on the host"));
  }
  if (instruction.source->has_copy()) return absl::OkStatus();
  for (size_t i = 0; i < instruction.operands.size(); ++i) {
    if (instruction.operands[i].absent()) continue;
    const uint32_t buffer = instruction.source->operands(static_cast<int>(i)).buffer();
    if (arenas[program.buffers(static_cast<int>(buffer)).arena()] != nullptr) continue;
    return InstructionError(absl::StatusCode::kInvalidArgument, *instruction.source,
                            absl::StrCat("operand ", i, " lies on NVMe, must be in memory"));
  }
  return absl::OkStatus();
}

absl::Status PrepareFamily(const InstructionPreparation& in, PreparedInstruction* out) {
  switch (in.source->kind_case()) {
    case v1::Instruction::kCompute:
      return PrepareCompute(in, out);
    case v1::Instruction::kCollective:
      return PrepareCollective(in, out);
    case v1::Instruction::kTransfer:
      return PrepareTransfer(in, out);
    case v1::Instruction::kInput:
      return PrepareInput(in, out);
    case v1::Instruction::kOutput:
      return PrepareOutput(in, out);
    case v1::Instruction::kCopy:
      return PrepareCopy(in, out);
    case v1::Instruction::KIND_NOT_SET:
      break;
  }
  return InstructionError(absl::StatusCode::kInvalidArgument, *in.source,
                          "unknown kind of instruction");
}

// Buffers that a checkpoint reads while the next step runs.
std::vector<bool> StateBuffers(const v1::Program& program) {
  std::vector<bool> is_state(program.buffers_size());
  for (const v1::StateRange& range : program.state()) is_state[range.buffer()] = true;
  return is_state;
}

bool WritesState(const v1::Instruction& instruction, const std::vector<bool>& is_state) {
  return std::any_of(instruction.operands().begin(), instruction.operands().end(),
                     [&](const v1::Operand& operand) {
                       if (operand.access() != v1::WRITE && operand.access() != v1::UPDATE)
                         return false;
                       const auto first = is_state.begin() + operand.buffer();
                       const uint32_t slots = std::max(1U, operand.slots());
                       return std::find(first, first + slots, true) != first + slots;
                     });
}

// Counts the collectives of a sequence in the order in which they are called, for `turn`.
class Turns {
 public:
  Turns(const v1::Sequence& sequence, const LoopIndex& loops)
      : sequence_(sequence), loops_(loops), in_bodies_(sequence.loops_size(), 0) {
    for (const v1::Instruction& instruction : sequence.instructions()) {
      const int loop = loops.LoopOf(static_cast<int>(instruction.id()));
      if (instruction.has_collective() && loop != kNoLoop) ++in_bodies_[loop];
    }
  }

  // Of the next collective of the list.
  void Take(PreparedInstruction* out) {
    const int loop = loops_.LoopOf(static_cast<int>(out->source->id()));
    if (loop != loop_ && loop_ != kNoLoop)
      next_ += static_cast<int32_t>(sequence_.loops(loop_).trips() - 1) * in_bodies_[loop_];
    loop_ = loop;
    out->turn = next_++;
    out->turn_step = loop == kNoLoop ? 0 : in_bodies_[loop];
  }

 private:
  const v1::Sequence& sequence_;
  const LoopIndex& loops_;
  std::vector<int32_t> in_bodies_;  // by loop
  int loop_ = kNoLoop;              // of the last one
  int32_t next_ = 0;
};

absl::Status CheckLength(const v1::Sequence& sequence) {
  const int64_t played = PlayedInstructions(sequence);
  if (played <= kPlayedMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("sequence ", sequence.name(), " executes ", played,
                   " instructions, each iteration of its loops counted, must be at most ",
                   kPlayedMax, "; use fewer micro-batches"));
}

}  // namespace

int32_t MarksOf(const PreparedStream& stream) {
  return std::max(static_cast<int32_t>(stream.instructions.size()),
                  std::min(kMarksInLoopsMin, stream.played()));
}

void PreparedInstruction::MoveTo(int32_t iteration) {
  if (micro_batch_step > 0)
    micro_batch =
        static_cast<int32_t>(source->micro_batch() + int64_t{iteration} * micro_batch_step);
  for (const Move& move : moves) {
    switch (move.target) {
      case Move::Target::kOperand:
        operands[move.index].data = move.AddressIn(iteration);
        break;
      case Move::Target::kWorkspace:
        context.workspace = move.AddressIn(iteration);
        break;
      case Move::Target::kPieceMemory:
        pieces[move.index].memory = move.AddressIn(iteration);
        break;
      case Move::Target::kPieceOffset:
        pieces[move.index].offset = move.PlaceIn(iteration);
        break;
    }
  }
}

absl::StatusOr<PreparedSequence> PrepareSequence(const v1::Program& program,
                                                 const v1::Sequence& sequence,
                                                 const PrepareOptions& options,
                                                 NvmeQueues nvme_queues, DeviceQueues queues) {
  RETURN_IF_ERROR(CheckLength(sequence));
  PreparedSequence prepared;
  prepared.name = sequence.name();
  std::vector<std::vector<RecordedLoop>> recorded = RecordedLoops(sequence, program.streams_size());
  for (int i = 0; i < program.streams_size(); ++i) {
    PreparedStream& stream = prepared.streams.emplace_back();
    stream.kind = program.streams(i).kind();
    stream.loops = std::move(recorded[i]);
    if (!queues.empty()) stream.queue = queues[i].get();
  }
  const std::vector<bool> is_state = StateBuffers(program);
  const bool in_turns = options.backend != nullptr && options.backend->one_collective_at_a_time();
  const LoopIndex loops(sequence);
  Turns turns(sequence, loops);
  WaitResolver waits(sequence, loops, program.streams_size());
  for (const v1::Instruction& source : sequence.instructions()) {
    PreparedInstruction instruction;
    instruction.source = &source;
    for (const v1::Operand& operand : source.operands()) {
      RETURN_IF_ERROR(
          Located(ResolveOperand(program, loops, operand, options.arenas, &instruction), source));
    }
    instruction.queue = prepared.streams[source.stream()].queue;
    instruction.micro_batch = source.micro_batch();
    if (const int loop = loops.LoopOf(static_cast<int>(source.id()));
        loop != kNoLoop && source.micro_batch() >= 0) {
      instruction.micro_batch_step = static_cast<int32_t>(sequence.loops(loop).micro_batches());
    }
    RETURN_IF_ERROR(CheckAddresses(program, options, instruction));
    RETURN_IF_ERROR(
        PrepareFamily({&program, &source, &options, nvme_queues, &sequence, &loops}, &instruction));
    instruction.waits = waits.Next();
    instruction.writes_state = WritesState(source, is_state);
    if (in_turns && source.has_collective()) turns.Take(&instruction);
    prepared.streams[source.stream()].instructions.push_back(std::move(instruction));
  }
  for (PreparedStream& stream : prepared.streams)
    stream.slices.resize(CountRecorded(stream.loops, stream.instructions.size()));
  return prepared;
}

}  // namespace terrace
