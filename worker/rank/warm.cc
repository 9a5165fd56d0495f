// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/warm.h"

#include <cstring>
#include <set>
#include <string>
#include <utility>

namespace terrace {
namespace {

// What decides which code runs: everything but the addresses and the place in the program.
std::string Signature(const v1::Instruction& source) {
  v1::Instruction bare;
  if (source.has_compute()) *bare.mutable_compute() = source.compute();
  if (source.has_compute()) bare.mutable_compute()->clear_workspace();
  if (source.has_collective()) *bare.mutable_collective() = source.collective();
  for (const v1::Operand& operand : source.operands()) {
    v1::Operand* shape = bare.add_operands();
    *shape = operand;
    shape->clear_buffer();
    shape->clear_offset();
  }
  bare.set_stream(source.stream());
  return bare.SerializeAsString();
}

absl::Status RunZeroIds(const PreparedInstruction& instruction, SequenceIo*) {
  for (const kernels::TensorView& ids : instruction.operands)
    std::memset(ids.data, 0, ids.SpanBytes());
  return absl::OkStatus();
}

// Ids index tables: they must be valid even in a pass over garbage.
void AppendZeroIds(const PreparedInstruction& instruction, std::vector<PreparedInstruction>* out) {
  PreparedInstruction zero;
  zero.run = RunZeroIds;
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
  if (instruction.source->has_compute()) AppendZeroIds(instruction, out);
  PreparedInstruction& copy = out->emplace_back(instruction);
  copy.waits.clear();
  copy.writes_state = false;
}

}  // namespace

std::vector<PreparedSequence> WarmSequences(std::span<const PreparedSequence> sequences) {
  if (sequences.empty()) return {};
  PreparedSequence compute{.name = "warm compute"}, collectives{.name = "warm collectives"};
  for (const PreparedStream& stream : sequences.front().streams) {
    compute.streams.push_back({.kind = stream.kind});
    collectives.streams.push_back({.kind = stream.kind});
  }
  std::set<std::string> done;
  for (const PreparedSequence& sequence : sequences) {
    for (size_t s = 0; s < sequence.streams.size(); ++s) {
      for (const PreparedInstruction& instruction : sequence.streams[s].instructions) {
        if (instruction.kernel != nullptr)
          AppendOnce(instruction, &done, &compute.streams[s].instructions);
        if (instruction.group != nullptr)
          AppendOnce(instruction, &done, &collectives.streams[s].instructions);
      }
    }
  }
  std::vector<PreparedSequence> result;
  for (PreparedSequence* warm : {&compute, &collectives}) {
    for (PreparedStream& stream : warm->streams) stream.slices.resize(stream.instructions.size());
    result.push_back(std::move(*warm));
  }
  return result;
}

}  // namespace terrace
