// A program with a loop, written by hand: micro-batch 0 before it, one micro-batch an iteration,
// the last one and an optimizer behind it. What an iteration reads is loaded during the one before,
// and what it makes is carried to the host while two others go on.
//
//   inputs    load                         tokens[2], values i and i+1
//   compute   forward, norm, backward      x[2], row i of `norms`, gradients
//   to_host   keep                         kept[2]
//
// Sizes are elements of f32.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "proto/program/tiers.h"
#include "proto/v1/program.pb.h"

namespace terrace {

struct LoopShape {
  uint32_t micro_batches = 102;  // two of them outside of the loop
  int64_t tokens = 3;
  int64_t x = 5;
  int64_t weights = 7;
};

class LoopProgram {
 public:
  explicit LoopProgram(const LoopShape& shape = {}) : shape_(shape) {
    program_.set_job("loop");
    program_.set_stages(1);
    program_.set_ranks(1);
    program_.set_threads(1);
    for (const auto& [kind, name] :
         {std::pair{v1::COMPUTE, "compute"}, std::pair{v1::HOST_TO_DEVICE, "inputs"},
          std::pair{v1::DEVICE_TO_HOST, "to_host"}}) {
      program_.add_streams()->set_kind(kind);
      program_.mutable_streams(program_.streams_size() - 1)->set_name(name);
    }
    for (const v1::Tier tier : {v1::DEVICE, v1::HOST}) {
      program_.add_arenas()->set_tier(tier);
      program_.mutable_arenas(program_.arenas_size() - 1)->set_id(program_.arenas_size() - 1);
    }
    AddBuffers();
    program_.mutable_rules()->set_micro_batches(shape.micro_batches);
    train_ = program_.add_sequences();
    train_->set_name("train");
    const int last = static_cast<int>(shape.micro_batches) - 1;
    Load(0, -1, {});
    Load(1, 0, {});
    Passes(0, -1, 0, 0, {0}, {});
    v1::Loop* loop = train_->add_loops();
    loop->set_first(train_->instructions_size());
    loop->set_trips(shape.micro_batches - 2);
    loop->set_micro_batches(1);
    const uint32_t load = loop->first(), norm = load + 2, keep = load + 4;
    Load(2, 1, {{norm, 1}});
    Passes(1, 0, 4, 4, {}, {{load, 1}, {keep, 2}});
    loop->set_count(train_->instructions_size() - loop->first());
    Passes(last, 0, int64_t{4} * last, 0, {load}, {{keep, 1}});
    v1::Instruction* sum = Compute("sum", -1, v1::OPTIMIZER_STEP);
    Touch(v1::READ, kNorms, shape.micro_batches, sum);
    Touch(v1::WRITE, kSum, 1, sum);
    v1::Instruction* update = Compute("add", -1, v1::OPTIMIZER_STEP);
    Touch(v1::READ, kGradients, shape.weights, update);
    Touch(v1::UPDATE, kWeights, shape.weights, update);
  }

  static constexpr uint32_t kWeights = 0, kGradients = 1, kTokens = 2, kX = 4, kKept = 6,
                            kNorms = 8, kSum = 9;
  v1::Program& program() { return program_; }

 private:
  using Back = std::vector<std::pair<uint32_t, uint32_t>>;  // instruction, iterations

  void AddBuffer(std::string name, v1::BufferClass buffer_class, int64_t elements,
                 v1::Lifetime lifetime, uint32_t arena = 0) {
    v1::Arena* in = program_.mutable_arenas(static_cast<int>(arena));
    v1::Buffer* buffer = program_.add_buffers();
    buffer->set_id(program_.buffers_size() - 1);
    buffer->set_name(std::move(name));
    buffer->set_class_(buffer_class);
    buffer->set_dtype(v1::F32);
    buffer->add_shape(elements);
    buffer->set_bytes(elements * 4);
    buffer->set_lifetime(lifetime);
    buffer->set_arena(arena);
    buffer->set_offset(in->bytes());
    if (lifetime == v1::STEP) buffer->set_sequence("train");
    const int64_t unit = ArenaAlignment(in->tier());
    in->set_bytes(in->bytes() + (elements * 4 + unit - 1) / unit * unit);
  }

  void AddBuffers() {
    AddBuffer("weights", v1::PARAMETER, shape_.weights, v1::PERSISTENT);
    AddBuffer("gradients", v1::GRADIENT, shape_.weights, v1::STEP);
    for (const char* name : {"tokens.0", "tokens.1"})
      AddBuffer(name, v1::INPUT, shape_.tokens, v1::STEP);
    for (const char* name : {"mb.layer0.x.0", "mb.layer0.x.1"})
      AddBuffer(name, v1::ACTIVATION, shape_.x, v1::STEP);
    for (const char* name : {"kept.0", "kept.1"})
      AddBuffer(name, v1::ACTIVATION, shape_.x, v1::STEP, 1);
    AddBuffer("norms", v1::ACTIVATION, shape_.micro_batches, v1::STEP);
    AddBuffer("sum", v1::WORKSPACE, 1, v1::STEP);
  }

  v1::Instruction* Add(uint32_t stream, const char* text, int micro_batch, v1::Phase phase) {
    v1::Instruction* instruction = train_->add_instructions();
    instruction->set_id(train_->instructions_size() - 1);
    instruction->set_stream(stream);
    instruction->set_text(text);
    instruction->set_phase(phase);
    instruction->set_layer(-1);
    instruction->set_micro_batch(micro_batch);
    return instruction;
  }

  v1::Instruction* Compute(const char* op, int micro_batch, v1::Phase phase) {
    v1::Instruction* instruction = Add(0, op, micro_batch, phase);
    instruction->mutable_compute()->set_op(op);
    return instruction;
  }

  static v1::Operand* Touch(v1::Access access, uint32_t buffer, int64_t elements,
                            v1::Instruction* instruction) {
    v1::Operand* operand = instruction->add_operands();
    operand->set_access(access);
    operand->set_buffer(buffer);
    operand->set_dtype(v1::F32);
    operand->add_shape(elements);
    return operand;
  }
  static v1::Operand* TouchSlot(v1::Access access, uint32_t buffer, int64_t elements, int slot,
                                v1::Instruction* instruction) {
    v1::Operand* operand = Touch(access, buffer, elements, instruction);
    operand->set_slots(2);
    operand->set_slot(slot);
    return operand;
  }

  static void Wait(const std::vector<uint32_t>& waits, const Back& back,
                   v1::Instruction* instruction) {
    for (const uint32_t wait : waits) instruction->add_waits(wait);
    for (const auto& [of, iterations] : back) {
      v1::BackWait* wait = instruction->add_back_waits();
      wait->set_instruction(of);
      wait->set_iterations(iterations);
    }
  }

  void Load(int micro_batch, int slot, const Back& back) {
    v1::Instruction* load = Add(1, "load", micro_batch, v1::FORWARD);
    load->mutable_input()->set_kind(v1::LOAD_BATCH);
    TouchSlot(v1::WRITE, kTokens, shape_.tokens, slot, load);
    Wait({}, back, load);
  }

  void Passes(int micro_batch, int slot, int64_t row, int64_t row_step,
              const std::vector<uint32_t>& waits, const Back& back) {
    v1::Instruction* forward = Compute("fill", micro_batch, v1::FORWARD);
    forward->set_text("forward");
    forward->set_layer(0);
    forward->mutable_compute()->mutable_fill();
    TouchSlot(v1::WRITE, kX, shape_.x, slot, forward);
    Wait(waits, back, forward);
    v1::Instruction* norm = Compute("squared_norm", micro_batch, v1::FORWARD);
    norm->mutable_compute()->mutable_scale()->set_scale(1);
    TouchSlot(v1::READ, kTokens, shape_.tokens, slot, norm);
    v1::Operand* of = Touch(v1::WRITE, kNorms, 1, norm);
    of->set_offset(row);
    of->set_offset_step(row_step);
    v1::Instruction* backward =
        Compute(micro_batch == 0 ? "cast" : "add", micro_batch, v1::BACKWARD);
    backward->set_text("backward");
    Touch(v1::READ, kWeights, shape_.weights, backward);
    Touch(micro_batch == 0 ? v1::WRITE : v1::UPDATE, kGradients, shape_.weights, backward);
    v1::Instruction* keep = Add(2, "keep", micro_batch, v1::FORWARD);
    keep->mutable_copy()->set_kind(v1::TO_HOST);
    TouchSlot(v1::READ, kX, shape_.x, slot, keep);
    TouchSlot(v1::WRITE, kKept, shape_.x, slot, keep);
    Wait({forward->id()}, {}, keep);
  }

  const LoopShape shape_;
  v1::Program program_;
  v1::Sequence* train_ = nullptr;
};

}  // namespace terrace
