// SPDX-License-Identifier: Apache-2.0
#include "worker/vm/warm.h"

#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"

namespace terrace {
namespace {

// What decides which code runs: everything but the addresses and the place in the program.
std::string Signature(const v1::Instruction& source) {
  v1::Instruction bare;
  *bare.mutable_compute() = source.compute();
  bare.mutable_compute()->clear_workspace();
  for (const v1::Operand& operand : source.operands()) {
    v1::Operand* shape = bare.add_operands();
    *shape = operand;
    shape->clear_buffer();
    shape->clear_offset();
    shape->clear_slots();
    shape->clear_slot();
    shape->clear_offset_step();
  }
  bare.set_stream(source.stream());
  return bare.SerializeAsString();
}

absl::Status RunZeroIds(const PreparedInstruction& instruction, SequenceIo*) {
  for (const kernels::TensorView& ids : instruction.operands) {
    if (instruction.queue != nullptr) {
      RETURN_IF_ERROR(instruction.queue->Zero(ids.data, ids.SpanBytes()));
    } else {
      std::memset(ids.data, 0, ids.SpanBytes());
    }
  }
  return absl::OkStatus();
}

// Ids index tables: they must be valid even in a pass over garbage.
void AppendZeroIds(const PreparedInstruction& instruction, std::vector<PreparedInstruction>* out) {
  PreparedInstruction zero;
  zero.run = RunZeroIds;
  zero.queue = instruction.queue;
  zero.source = instruction.source;
  for (int i = 0; i < static_cast<int>(instruction.operands.size()); ++i) {
    const bool is_read = instruction.source->operands(i).access() == v1::READ;
    if (is_read && instruction.operands[i].dtype == kernels::DType::kI32)
      zero.operands.push_back(instruction.operands[i]);
  }
  if (!zero.operands.empty()) out->push_back(std::move(zero));
}

void AppendOnce(const PreparedInstruction& instruction, std::set<std::string>* done,
                std::vector<PreparedInstruction>* out) {
  if (!done->insert(Signature(*instruction.source)).second) return;
  AppendZeroIds(instruction, out);
  PreparedInstruction& copy = out->emplace_back(instruction);
  copy.waits.clear();
  copy.moves.clear();
  copy.writes_state = false;
}

}  // namespace

PreparedSequence WarmSequence(std::span<const PreparedSequence> sequences) {
  PreparedSequence warm{.name = "warm"};
  std::set<std::string> done;
  for (const PreparedSequence& sequence : sequences) {
    warm.streams.resize(sequence.streams.size());
    for (size_t s = 0; s < sequence.streams.size(); ++s) {
      warm.streams[s].kind = sequence.streams[s].kind;
      warm.streams[s].queue = sequence.streams[s].queue;
      for (const PreparedInstruction& instruction : sequence.streams[s].instructions) {
        if (instruction.source->has_compute())
          AppendOnce(instruction, &done, &warm.streams[s].instructions);
      }
    }
  }
  for (PreparedStream& stream : warm.streams) stream.slices.resize(stream.instructions.size());
  return warm;
}

}  // namespace terrace
