// Writes a program anew with loops in it.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/compiler/graph/builder.h"
#include "coordinator/compiler/loops/roll_values.h"
#include "proto/program/operands.h"

namespace terrace::compiler {
namespace {

class Writer {
 public:
  Writer(const std::vector<std::optional<RolledSequence>>& rolled, int64_t more,
         int64_t an_iteration, v1::Program* program)
      : rolled_(rolled),
        more_(more),
        an_iteration_(an_iteration),
        program_(*program),
        straight_(*program) {}

  void Run() {
    WriteBuffers();
    for (int s = 0; s < program_.sequences_size(); ++s) WriteSequence(s);
  }

 private:
  // A chain's buffers stand where its first value stood.
  void WriteBuffers() {
    program_.clear_buffers();
    ids_.resize(straight_.buffers_size());
    std::map<const RolledValues::Chain*, uint32_t> written;
    for (const v1::Buffer& buffer : straight_.buffers()) {
      const RolledValues::Chain* chain = ChainOf(buffer.id());
      if (chain == nullptr) {
        ids_[buffer.id()] = AddBuffer(buffer, buffer.name());
        continue;
      }
      const auto [entry, is_new] = written.emplace(chain, program_.buffers_size());
      ids_[buffer.id()] = entry->second;
      const std::string name = ReplaceMicroBatch(buffer.name(), "mb.");
      for (int slot = 0; is_new && slot < chain->slots; ++slot)
        AddBuffer(buffer, chain->slots == 1 ? name : absl::StrCat(name, "/", slot));
    }
    for (const std::optional<RolledSequence>& rolled : rolled_) {
      if (rolled.has_value()) LengthenArrays(*rolled);
    }
  }

  uint32_t AddBuffer(const v1::Buffer& buffer, const std::string& name) {
    v1::Buffer* added = program_.add_buffers();
    *added = buffer;
    added->set_id(program_.buffers_size() - 1);
    added->set_name(name);
    return added->id();
  }

  const RolledValues::Chain* ChainOf(uint32_t buffer) const {
    for (const std::optional<RolledSequence>& rolled : rolled_) {
      if (!rolled.has_value()) continue;
      const auto number = rolled->values.numbers.find(buffer);
      if (number != rolled->values.numbers.end())
        return &rolled->values.chains[number->second.first];
    }
    return nullptr;
  }

  void LengthenArrays(const RolledSequence& rolled) {
    for (const auto& [id, step] : rolled.values.arrays) {
      v1::Buffer* array = program_.mutable_buffers(static_cast<int>(ids_[id]));
      array->set_shape(0, array->shape(0) + more_ * an_iteration_);
      array->set_bytes(array->bytes() + more_ * step);
    }
  }

  void WriteSequence(int index) {
    const v1::Sequence& from = straight_.sequences(index);
    v1::Sequence* to = program_.mutable_sequences(index);
    to->clear_instructions();
    const RolledSequence* rolled = rolled_[index].has_value() ? &*rolled_[index] : nullptr;
    for (const v1::Instruction& instruction : from.instructions()) {
      const auto id = static_cast<int>(instruction.id());
      if (rolled != nullptr && id >= rolled->iterations.begin(1) && id < rolled->iterations.end())
        continue;
      Write(instruction, rolled, to);
    }
    if (rolled == nullptr) return;
    v1::Loop* loop = to->add_loops();
    loop->set_first(rolled->iterations.first);
    loop->set_count(rolled->iterations.length);
    loop->set_trips(static_cast<uint32_t>(rolled->iterations.count + more_));
    loop->set_micro_batches(static_cast<uint32_t>(an_iteration_));
  }

  void Write(const v1::Instruction& from, const RolledSequence* rolled, v1::Sequence* sequence) {
    v1::Instruction* to = sequence->add_instructions();
    *to = from;
    to->set_id(sequence->instructions_size() - 1);
    const auto id = static_cast<int>(from.id());
    const bool behind = rolled != nullptr && id >= rolled->iterations.end();
    const bool inside = rolled != nullptr && rolled->iterations.Has(id);
    if (behind && from.micro_batch() >= 0)
      to->set_micro_batch(from.micro_batch() + static_cast<int>(more_ * an_iteration_));
    ForEachMutableOperand(to, [&](v1::Operand* operand) {
      WriteOperand(from.micro_batch(), rolled, inside, behind, operand);
    });
    if (behind && from.micro_batch() >= 0) RenameMade(*to);
    if (to->compute().has_workspace()) RenameWorkspace(*to);
    if (inside) return WriteWaits(rolled->waits[id - rolled->iterations.first], *rolled, to);
    if (behind) WriteWaitsBehind(from, *rolled, to);
  }

  void WriteOperand(int micro_batch, const RolledSequence* rolled, bool inside, bool behind,
                    v1::Operand* operand) const {
    if (operand->access() == v1::ACCESS_UNSPECIFIED) return;
    const uint32_t buffer = operand->buffer();
    operand->set_buffer(ids_[buffer]);
    if (rolled == nullptr) return;
    const RolledValues& values = rolled->values;
    if (const auto number = values.numbers.find(buffer); number != values.numbers.end()) {
      operand->set_slots(values.chains[number->second.first].slots);
      operand->set_slot(number->second.second - (behind ? rolled->iterations.count : 0));
    }
    const auto array = values.arrays.find(buffer);
    if (array == values.arrays.end()) return;
    if (inside) operand->set_offset_step(array->second);
    if (behind && micro_batch >= 0) operand->set_offset(operand->offset() + more_ * array->second);
    if (behind && micro_batch < 0) operand->set_shape(0, operand->shape(0) + more_ * an_iteration_);
  }

  // What an instruction behind the loop makes is named after the micro-batch that it has there.
  void RenameMade(const v1::Instruction& instruction) {
    for (const v1::Operand& operand : instruction.operands()) {
      if (operand.access() != v1::WRITE || operand.slots() > 0) continue;
      v1::Buffer* buffer = program_.mutable_buffers(static_cast<int>(operand.buffer()));
      buffer->set_name(
          ReplaceMicroBatch(buffer->name(), absl::StrCat("mb", instruction.micro_batch(), ".")));
    }
  }

  // Scratch is named after its instruction.
  void RenameWorkspace(const v1::Instruction& instruction) {
    v1::Buffer* buffer =
        program_.mutable_buffers(static_cast<int>(instruction.compute().workspace().buffer()));
    const size_t dot = buffer->name().rfind('.');
    const size_t slash = buffer->name().find('/');
    if (dot == std::string::npos) return;
    const std::string slot = slash == std::string::npos ? "" : buffer->name().substr(slash);
    buffer->set_name(absl::StrCat(buffer->name().substr(0, dot + 1), instruction.id(), slot));
  }

  static void WriteWaits(const std::vector<RolledWait>& waits, const RolledSequence& rolled,
                         v1::Instruction* to) {
    to->clear_waits();
    for (const RolledWait& wait : waits) AddWait(wait, rolled, to);
  }

  static void AddWait(const RolledWait& wait, const RolledSequence& rolled, v1::Instruction* to) {
    const auto id = static_cast<uint32_t>(rolled.iterations.first + wait.instruction);
    if (wait.back == 0) {
      to->add_waits(id);
      return;
    }
    v1::BackWait* back = to->add_back_waits();
    back->set_instruction(id);
    back->set_iterations(wait.back);
  }

  static void WriteWaitsBehind(const v1::Instruction& from, const RolledSequence& rolled,
                               v1::Instruction* to) {
    const Iterations& in = rolled.iterations;
    to->clear_waits();
    for (const uint32_t wait : from.waits()) {
      const auto id = static_cast<int>(wait);
      if (in.Has(id)) {
        AddWait({.instruction = (id - in.first) % in.length,
                 .back = in.count - 1 - (id - in.first) / in.length},
                rolled, to);
      } else {
        to->add_waits(id < in.first ? id : id - (in.count - 1) * in.length);
      }
    }
  }

  const std::vector<std::optional<RolledSequence>>& rolled_;  // by sequence
  const int64_t more_;                                        // iterations
  const int64_t an_iteration_;                                // micro-batches
  v1::Program& program_;
  const v1::Program straight_;
  std::vector<uint32_t> ids_;  // by buffer of the straight program: the first of its buffers
};

}  // namespace

void WriteLoops(const std::vector<std::optional<RolledSequence>>& rolled, int64_t more,
                int64_t an_iteration, v1::Program* program) {
  Writer(rolled, more, an_iteration, program).Run();
}

}  // namespace terrace::compiler
