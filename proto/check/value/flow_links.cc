// What Flow learns about which gradient belongs to which weights: who was multiplied with whom.
//
// SPDX-License-Identifier: Apache-2.0
#include <utility>
#include <vector>

#include "kernels/op.h"
#include "proto/check/value/flow.h"

namespace terrace::check {

using kernels::Op;

// Where the state lies that the operand holds; nowhere when it holds no state, or not from one
// place.
StatePlace Flow::StateIn(const Access& access, int64_t element_bytes) const {
  StatePlace place;
  bool first = true, one = true;
  int64_t bytes = 0;
  ForEach(access, [&](const ByteRange& piece, const Value& value) {
    const StatePlace at = {value.role == Value::kState ? value.origin : -1, value.distance};
    one = one && (first || at == place) && at.buffer >= 0;
    place = at;
    first = false;
    bytes += piece.end - piece.begin;
  });
  if (!one || first || bytes != access.end() - access.offset) return {};
  place.element += access.offset / element_bytes;
  return place;
}

// Some of the operand is state, and not all of it from one place.
bool Flow::MixesState(const Access& access, int64_t element_bytes) const {
  bool any = false;
  ForEach(access,
          [&](const ByteRange&, const Value& value) { any = any || value.role == Value::kState; });
  return any && StateIn(access, element_bytes).buffer < 0;
}

Content Flow::ContentOf(const Access& access) const {
  return {access.buffer, access.offset, versions_[access.buffer]};
}

// Weights that meet an activation.
void Flow::NoteUses(int i) {
  const CheckedInstruction& instruction = sequence_->instructions[i];
  if (!instruction.op.has_value()) return;
  const auto note = [&](int activation, int weights, Links::Side side) {
    const Access* with = instruction.Find(weights);
    if (with == nullptr || with->rows > 1) return;
    const StatePlace place = StateIn(*with, ElementBytes(i, weights));
    if (place.buffer >= 0) values_.links().AddUse(ContentOf(At(i, activation)), side, place);
  };
  if (instruction.op->op == Op::kEmbedding) {
    note(0, 1, Links::kLookup);
    note(0, 2, Links::kPositions);
  } else if (instruction.op->op == Op::kMatmul) {
    const auto& attrs = std::get<kernels::MatmulAttrs>(instruction.op->attrs);
    note(0, 1, attrs.transpose_b ? Links::kColumns : Links::kRows);
    note(1, 0, attrs.transpose_a ? Links::kRows : Links::kColumns);
  }
}

// What the instruction makes in `access` when that is the gradient of weights; of no instruction
// otherwise.
Links::Product Flow::ProductIn(int i, const Access& access) const {
  const CheckedInstruction& instruction = sequence_->instructions[i];
  Links::Product product = {.instruction = -1};
  if (!instruction.op.has_value() || access.rows > 1) return product;
  const auto is_of = [&](Op op, int operand) {
    return instruction.op->op == op && access.operand == operand;
  };
  const auto state_in = [&](int operand) {
    return StateIn(At(i, operand), ElementBytes(i, operand));
  };
  if (is_of(Op::kMatmul, 2)) {
    if (state_in(0).buffer >= 0 || state_in(1).buffer >= 0) return product;
    product.of = {{Links::kRows, ContentOf(At(i, 0))}, {Links::kColumns, ContentOf(At(i, 1))}};
  } else if (is_of(Op::kEmbeddingGrad, 2)) {
    product.of = {{Links::kLookup, ContentOf(At(i, 0))}};
  } else if (is_of(Op::kEmbeddingGrad, 3)) {
    product.of = {{Links::kPositions, ContentOf(At(i, 0))}};
  } else if (is_of(Op::kLmHeadLossGrad, 5)) {
    product.weights = state_in(1);
  } else if (is_of(Op::kLayerNormGrad, 7) || is_of(Op::kRmsNormGrad, 6)) {
    product.weights = state_in(2);
  } else {
    return product;
  }
  product.instruction = i;
  return product;
}

// `made` as the gradient that it is, added to what lies there in `before` if that is one too.
Value Flow::AsGradient(int i, const Access& access, const Value* before, Value made) {
  if (made.spoiled_by >= 0) return made;
  Links::Product product = ProductIn(i, access);
  if (product.instruction < 0) return made;
  made.role = Value::kGradient;
  made.distance = -access.offset / ElementBytes(i, access.operand);
  if (before != nullptr && before->role == Value::kGradient && before->distance == made.distance) {
    made.origin = before->origin;
    values_.links().AddProduct(made.origin, std::move(product));
  } else {
    made.origin = values_.links().AddGradient(std::move(product));
  }
  return made;
}

}  // namespace terrace::check
