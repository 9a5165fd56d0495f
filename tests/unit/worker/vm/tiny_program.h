// Writes small programs by hand, for tests of the VM: buffers one after the other in the arena of
// their tier, operands that name them.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "kernels/op.h"
#include "proto/program/op_codec.h"
#include "proto/v1/program.pb.h"

namespace terrace {

class TinyProgram {
 public:
  TinyProgram(std::initializer_list<v1::StreamKind> streams, std::string_view sequence = "train") {
    for (v1::StreamKind kind : streams) program_.add_streams()->set_kind(kind);
    program_.add_arenas()->set_tier(v1::DEVICE);
    sequence_ = program_.add_sequences();
    sequence_->set_name(std::string(sequence));
  }

  // The arena of a tier exists from its first buffer on.
  uint32_t Buffer(v1::DType dtype, std::vector<int64_t> shape, v1::Tier tier = v1::DEVICE) {
    v1::Arena* arena = ArenaOf(tier);
    const int64_t alignment = tier == v1::DEVICE ? 256 : 4096;
    v1::Buffer* buffer = program_.add_buffers();
    buffer->set_id(program_.buffers_size() - 1);
    buffer->set_dtype(dtype);
    int64_t elements = 1;
    for (int64_t n : shape) elements *= n;
    buffer->mutable_shape()->Add(shape.begin(), shape.end());
    buffer->set_bytes(elements * 4);
    buffer->set_arena(arena->id());
    buffer->set_offset(arena->bytes());
    arena->set_bytes(arena->bytes() + (elements * 4 + alignment - 1) / alignment * alignment);
    return buffer->id();
  }

  // Each adds one instruction on `stream` and returns it, for waits and operands.
  v1::Instruction* Compute(uint32_t stream, kernels::Op op, const kernels::OpAttrs& attrs,
                           std::vector<std::pair<v1::Access, uint32_t>> operands) {
    v1::Instruction* instruction = Add(stream, std::string(kernels::Name(op)), std::move(operands));
    EncodeOp(op, attrs, instruction->mutable_compute());
    return instruction;
  }
  v1::Instruction* Input(uint32_t stream, v1::InputKind kind, std::vector<uint32_t> buffers) {
    std::vector<std::pair<v1::Access, uint32_t>> operands;
    for (uint32_t buffer : buffers) operands.push_back({v1::WRITE, buffer});
    v1::Instruction* instruction = Add(stream, "input", std::move(operands));
    instruction->mutable_input()->set_kind(kind);
    return instruction;
  }
  v1::Instruction* Output(uint32_t stream, v1::OutputKind kind, uint32_t buffer) {
    v1::Instruction* instruction = Add(stream, "output", {{v1::READ, buffer}});
    instruction->mutable_output()->set_kind(kind);
    return instruction;
  }
  v1::Instruction* AllReduce(uint32_t stream, uint32_t buffer) {
    v1::Instruction* instruction = Add(stream, "all_reduce", {{v1::UPDATE, buffer}});
    instruction->mutable_collective()->set_kind(v1::ALL_REDUCE);
    return instruction;
  }

  v1::Instruction* Collective(uint32_t stream, v1::CollectiveKind kind, uint32_t group, uint32_t in,
                              uint32_t out) {
    v1::Instruction* instruction = Add(stream, "collective", {{v1::READ, in}, {v1::WRITE, out}});
    instruction->mutable_collective()->set_kind(kind);
    instruction->mutable_collective()->set_group(group);
    return instruction;
  }
  v1::Instruction* Transfer(uint32_t stream, v1::TransferKind kind, uint32_t group,
                            uint32_t peer_stage, uint32_t buffer) {
    const bool sends = kind == v1::SEND;
    v1::Instruction* instruction =
        Add(stream, sends ? "send" : "receive", {{sends ? v1::READ : v1::WRITE, buffer}});
    instruction->mutable_transfer()->set_kind(kind);
    instruction->mutable_transfer()->set_group(group);
    instruction->mutable_transfer()->set_peer_stage(peer_stage);
    return instruction;
  }
  // {from, to} buffers.
  v1::Instruction* Copy(uint32_t stream, v1::CopyKind kind,
                        std::vector<std::pair<uint32_t, uint32_t>> pairs) {
    std::vector<std::pair<v1::Access, uint32_t>> operands;
    for (const auto& [from, to] : pairs) {
      operands.push_back({v1::READ, from});
      operands.push_back({v1::WRITE, to});
    }
    v1::Instruction* instruction = Add(stream, "copy", std::move(operands));
    instruction->mutable_copy()->set_kind(kind);
    return instruction;
  }
  // Returns the group's index.
  uint32_t Group(std::string name, std::initializer_list<v1::Axis> axes) {
    v1::Group* group = program_.add_groups();
    group->set_name(std::move(name));
    for (v1::Axis axis : axes) group->add_axes(axis);
    return program_.groups_size() - 1;
  }

  v1::Program& program() { return program_; }

  // Room for arena 0, the only one; call after the last Buffer. Programs of several tiers use
  // ProgramMemory.
  std::vector<std::byte*> Arenas() {
    memory_ = std::make_unique<std::byte[]>(program_.arenas(0).bytes() + 64);
    void* start = memory_.get();
    size_t space = program_.arenas(0).bytes() + 64;
    return {static_cast<std::byte*>(std::align(64, program_.arenas(0).bytes(), start, space))};
  }

 private:
  v1::Arena* ArenaOf(v1::Tier tier) {
    for (v1::Arena& arena : *program_.mutable_arenas()) {
      if (arena.tier() == tier) return &arena;
    }
    v1::Arena* arena = program_.add_arenas();
    arena->set_id(program_.arenas_size() - 1);
    arena->set_tier(tier);
    return arena;
  }

  v1::Instruction* Add(uint32_t stream, std::string text,
                       std::vector<std::pair<v1::Access, uint32_t>> operands) {
    v1::Instruction* instruction = sequence_->add_instructions();
    instruction->set_id(sequence_->instructions_size() - 1);
    instruction->set_stream(stream);
    instruction->set_text(std::move(text));
    for (const auto& [access, buffer] : operands) {
      v1::Operand* operand = instruction->add_operands();
      operand->set_access(access);
      operand->set_buffer(buffer);
      operand->set_dtype(program_.buffers(buffer).dtype());
      *operand->mutable_shape() = program_.buffers(buffer).shape();
    }
    return instruction;
  }

  v1::Program program_;
  v1::Sequence* sequence_;
  std::unique_ptr<std::byte[]> memory_;
};

}  // namespace terrace
