// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/prepared_program.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "proto/allocation_events.h"
#include "proto/op_codec.h"
#include "worker/rank/handlers.h"

namespace terrace {

absl::Status InstructionError(absl::StatusCode code, const v1::Instruction& instruction,
                              std::string_view problem) {
  return absl::Status(code, absl::StrCat("instruction ", instruction.id(), " (", instruction.text(),
                                         "): ", Absl(problem)));
}

WorkKind WorkOf(const PreparedInstruction& instruction, v1::StreamKind stream) {
  if (instruction.group != nullptr) return WorkKind::kCommunication;
  return instruction.copied_bytes > 0 || stream == v1::HOST_COMPUTE ? WorkKind::kOffload
                                                                    : WorkKind::kCompute;
}

namespace {

absl::StatusOr<kernels::TensorView> ResolveOperand(const v1::Program& program,
                                                   const v1::Operand& operand,
                                                   std::span<std::byte* const> arenas) {
  ASSIGN_OR_RETURN(const kernels::TensorShape shape, DecodeShape(operand));
  kernels::TensorView view;
  static_cast<kernels::TensorShape&>(view) = shape;
  if (view.absent()) return view;
  const v1::Buffer& buffer = program.buffers(operand.buffer());
  if (arenas[buffer.arena()] != nullptr && !IsDynamic(program, buffer))
    view.data = arenas[buffer.arena()] + buffer.offset() + operand.offset();
  return view;
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
                       return (operand.access() == v1::WRITE || operand.access() == v1::UPDATE) &&
                              is_state[operand.buffer()];
                     });
}

// Turns the waits of one instruction into positions. `seen` holds, per stream waited for, the
// largest position that the waiting stream already knows to be finished.
void ResolveWaits(const v1::Sequence& sequence, const std::vector<int32_t>& positions,
                  std::vector<int32_t>* seen, PreparedInstruction* out) {
  std::vector<int32_t> wanted(seen->size(), 0);
  for (uint32_t id : out->source->waits()) {
    int32_t& position = wanted[sequence.instructions(id).stream()];
    position = std::max(position, positions[id] + 1);
  }
  for (uint32_t stream = 0; stream < wanted.size(); ++stream) {
    if (stream == out->source->stream() || wanted[stream] <= (*seen)[stream]) continue;
    (*seen)[stream] = wanted[stream];
    out->waits.push_back({stream, wanted[stream]});
  }
}

}  // namespace

absl::StatusOr<PreparedSequence> PrepareSequence(const v1::Program& program,
                                                 const v1::Sequence& sequence,
                                                 const PrepareOptions& options,
                                                 NvmeQueues nvme_queues, DeviceQueues queues) {
  PreparedSequence prepared;
  prepared.name = sequence.name();
  for (int i = 0; i < program.streams_size(); ++i) {
    PreparedStream& stream = prepared.streams.emplace_back();
    stream.kind = program.streams(i).kind();
    if (!queues.empty()) stream.queue = queues[i].get();
  }
  const std::vector<bool> is_state = StateBuffers(program);
  int32_t collectives = 0;
  const bool in_turns = options.backend != nullptr && options.backend->one_collective_at_a_time();
  std::vector<int32_t> positions;  // by id: of the instruction within its stream
  std::vector<std::vector<int32_t>> seen(program.streams_size(),
                                         std::vector<int32_t>(program.streams_size(), 0));
  for (const v1::Instruction& source : sequence.instructions()) {
    PreparedInstruction instruction;
    instruction.source = &source;
    for (const v1::Operand& operand : source.operands()) {
      ASSIGN_OR_RETURN(instruction.operands.emplace_back(),
                       ResolveOperand(program, operand, options.arenas));
    }
    instruction.queue = prepared.streams[source.stream()].queue;
    RETURN_IF_ERROR(CheckAddresses(program, options, instruction));
    RETURN_IF_ERROR(
        PrepareFamily({&program, &source, &options, nvme_queues, &sequence}, &instruction));
    ResolveWaits(sequence, positions, &seen[source.stream()], &instruction);
    instruction.writes_state = WritesState(source, is_state);
    if (in_turns && source.has_collective()) instruction.turn = collectives++;
    PreparedStream& stream = prepared.streams[source.stream()];
    positions.push_back(static_cast<int32_t>(stream.instructions.size()));
    stream.instructions.push_back(std::move(instruction));
  }
  for (PreparedStream& stream : prepared.streams) stream.slices.resize(stream.instructions.size());
  return prepared;
}

}  // namespace terrace
