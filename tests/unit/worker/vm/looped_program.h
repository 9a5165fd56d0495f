// A program that does the same for each micro-batch, the first and the last of them written out and
// the rest as a loop: inputs, products and sums that use buffers in turn.
//
// Rows of a table are gathered, added to a total, and to a row of an array that each micro-batch
// has for itself; then the total and the array are put out.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/unit/worker/vm/tiny_program.h"

namespace terrace {

struct LoopedShape {
  uint32_t slots = 2;
  uint32_t trips = 5;
  bool one_stream = false;
};

class LoopedProgram {
 public:
  static constexpr int kRows = 8, kColumns = 4, kTokens = 3;

  explicit LoopedProgram(LoopedShape shape)
      : shape_(shape), tiny_({v1::COMPUTE, v1::HOST_TO_DEVICE, v1::HOST_COMPUTE}) {
    tiny_.program().mutable_rules()->set_micro_batch(1);
    tiny_.program().mutable_rules()->set_micro_batches(micro_batches());
    tiny_.program().mutable_rules()->set_sequence_length(kTokens);
    table_ = tiny_.Buffer(v1::F32, {kRows, kColumns});
    total_ = tiny_.Buffer(v1::F32, {kTokens, kColumns});
    array_ = tiny_.Buffer(v1::F32, {micro_batches(), kTokens * kColumns});
    tokens_ = tiny_.Buffer(v1::I32, {kTokens});
    for (uint32_t i = 1; i < shape.slots; ++i) tiny_.Buffer(v1::I32, {kTokens});
    values_ = tiny_.Buffer(v1::F32, {kTokens, kColumns});
    for (uint32_t i = 1; i < shape.slots; ++i) tiny_.Buffer(v1::F32, {kTokens, kColumns});
    for (const uint32_t cleared : {total_, array_})
      tiny_.Compute(Sums(), kernels::Op::kFill, kernels::FillAttrs{}, {{v1::WRITE, cleared}});
    AddMicroBatch(Part::kBefore);
    v1::Loop* loop = tiny_.program().mutable_sequences(0)->add_loops();
    loop->set_first(Count());
    body_ = Count();
    AddMicroBatch(Part::kBody);
    loop->set_count(Count() - loop->first());
    loop->set_trips(shape.trips);
    loop->set_micro_batches(1);
    AddMicroBatch(Part::kBehind);
    const uint32_t last = Count() - 1;
    for (const uint32_t out : {total_, array_}) {
      v1::Instruction* output = tiny_.Output(0, v1::LOGITS, out);
      if (!shape_.one_stream) output->add_waits(last);
    }
  }

  TinyProgram& tiny() { return tiny_; }
  const v1::Program& program() { return tiny_.program(); }
  int64_t micro_batches() const { return int64_t{shape_.trips} + 2; }
  // The first instruction of the body, and how many it has.
  uint32_t body() const { return body_; }
  static constexpr uint32_t kBody = 4;
  uint32_t table() const { return table_; }

 private:
  enum class Part { kBefore, kBody, kBehind };

  uint32_t Count() {
    return static_cast<uint32_t>(tiny_.program().sequences(0).instructions_size());
  }
  uint32_t Loads() const { return shape_.one_stream ? 0 : 1; }
  uint32_t Sums() const { return shape_.one_stream ? 0 : 2; }

  // Value 0 before the loop, 1 and on in it, 1 + trips behind it.
  void InTurn(Part part, v1::Operand* operand) {
    operand->set_slots(shape_.slots);
    operand->set_slot(part == Part::kBefore ? 0 : 1);
  }
  void Row(Part part, v1::Operand* operand) {
    const int64_t bytes = 4 * kTokens * kColumns;
    const int64_t row = part == Part::kBefore ? 0 : part == Part::kBody ? 1 : micro_batches() - 1;
    operand->set_offset(row * bytes);
    if (part == Part::kBody) operand->set_offset_step(bytes);
    operand->clear_shape();
    operand->add_shape(kTokens);
    operand->add_shape(kColumns);
  }
  // Until the value that lay in the same slot has been used, by the instruction at `place` of a
  // micro-batch.
  void AfterUse(Part part, uint32_t place, v1::Instruction* instruction) {
    if (shape_.one_stream || part == Part::kBefore) return;
    const uint32_t back = part == Part::kBody ? shape_.slots : shape_.slots - 1;
    if (back == 0) {
      instruction->add_waits(body_ + place);
      return;
    }
    v1::BackWait* wait = instruction->add_back_waits();
    wait->set_instruction(body_ + place);
    wait->set_iterations(back);
  }
  void After(const v1::Instruction* other, v1::Instruction* instruction) {
    if (!shape_.one_stream) instruction->add_waits(other->id());
  }

  void AddMicroBatch(Part part) {
    v1::Instruction* load = tiny_.Input(Loads(), v1::LOAD_BATCH, {tokens_});
    load->add_operands();  // no targets
    load->set_micro_batch(part == Part::kBefore ? 0
                          : part == Part::kBody ? 1
                                                : static_cast<int>(micro_batches()) - 1);
    InTurn(part, load->mutable_operands(0));
    AfterUse(part, 1, load);
    v1::Instruction* gather =
        tiny_.Compute(0, kernels::Op::kGatherRows, kernels::NoAttrs{},
                      {{v1::READ, table_}, {v1::READ, tokens_}, {v1::WRITE, values_}});
    InTurn(part, gather->mutable_operands(1));
    InTurn(part, gather->mutable_operands(2));
    After(load, gather);
    AfterUse(part, 3, gather);
    for (const uint32_t sum : {total_, array_}) {
      v1::Instruction* add = tiny_.Compute(Sums(), kernels::Op::kAdd, kernels::NoAttrs{},
                                           {{v1::READ, values_}, {v1::UPDATE, sum}});
      InTurn(part, add->mutable_operands(0));
      if (sum == array_) Row(part, add->mutable_operands(1));
      After(gather, add);
    }
  }

  const LoopedShape shape_;
  TinyProgram tiny_;
  uint32_t body_ = 0;
  uint32_t table_ = 0, total_ = 0, array_ = 0, tokens_ = 0, values_ = 0;
};

}  // namespace terrace
