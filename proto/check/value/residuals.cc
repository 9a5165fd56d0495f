// SPDX-License-Identifier: Apache-2.0
#include "proto/check/value/residuals.h"

#include <algorithm>
#include <tuple>

#include "base/status_macros.h"
#include "kernels/op.h"
#include "kernels/tensor_view.h"
#include "proto/check/instruction/refuse.h"
#include "proto/check/value/state.h"

namespace terrace::check {
namespace {

constexpr int kElements = 0, kResidual = 3;  // operands of kEncodeBlocks

int64_t ElementBytes(const v1::StateRange& range) {
  return kernels::SizeOf(static_cast<kernels::DType>(range.dtype()));
}

// Two ranges hold the same rectangle of a tensor, one perhaps as a shard.
bool SameRectangle(const v1::StateRange& a, const v1::StateRange& b) {
  const auto rectangle = [](const v1::StateRange& r) {
    return std::tuple(r.row(), r.rows(), r.column(), r.columns(), r.split(),
                      std::max(1u, r.split_block()), r.rows() > 1 ? r.row_stride() : 0);
  };
  return rectangle(a) == rectangle(b);
}

}  // namespace

Residuals::Residuals(const v1::Program& program, const StateIndex& state,
                     const CheckedSequence& train, const Flow& flow)
    : program_(program), state_(state), train_(train), flow_(flow), kept_(program.buffers_size()) {
  for (const v1::StateRange& range : program.state()) {
    if (range.kind() == v1::WEIGHT) weights_[range.tensor()].push_back(&range);
  }
}

absl::Status Residuals::Check(int i) {
  const CheckedInstruction& instruction = train_.instructions[i];
  if (!instruction.op.has_value() || instruction.op->op != kernels::Op::kEncodeBlocks)
    return absl::OkStatus();
  const Access* residual = instruction.Find(kResidual);
  if (residual == nullptr) return absl::OkStatus();
  absl::Status status;
  bool found = false;
  state_.ForEach(residual->buffer, residual->offset, residual->end(),
                 [&](const v1::StateRange& range) {
                   found = true;
                   if (status.ok()) status = CheckGradients(i, range);
                 });
  RETURN_IF_ERROR(status);
  if (!found) {
    return Refuse(Where(*train_.sequence, train_.sequence->instructions(i)),
                  ": keeps a residual in ", BufferText(program_, residual->buffer),
                  ", which is no state");
  }
  kept_[residual->buffer].Set({residual->offset, residual->end()}, 1);
  return absl::OkStatus();
}

absl::Status Residuals::CheckGradients(int i, const v1::StateRange& residual) {
  const std::string where = Where(*train_.sequence, train_.sequence->instructions(i));
  const v1::StateRange* const weights = WeightsOf(residual);
  if (residual.kind() != v1::RESIDUAL || weights == nullptr) {
    return Refuse(where, ": keeps a residual in ", BufferText(program_, residual.buffer()),
                  ", which holds ", v1::StateKind_Name(residual.kind()), " of '", residual.tensor(),
                  "'", weights == nullptr ? ", of which the stage has no weights there" : "");
  }
  const Access& from = *train_.instructions[i].Find(kElements);
  const Access& kept = *train_.instructions[i].Find(kResidual);
  const int64_t bytes = flow_.ElementBytes(i, kElements), kept_bytes = ElementBytes(residual);
  const Rows rows = RowsIn(residual);
  const int64_t first = std::max(rows.offset, kept.offset) / kept_bytes;
  const int64_t end =
      std::min(rows.offset + (rows.rows - 1) * rows.stride_bytes + rows.row_bytes, kept.end()) /
      kept_bytes;
  // From an element of the residual to that which is encoded, and to its weight.
  const int64_t to_encoded = from.offset / bytes - kept.offset / kept_bytes;
  const int64_t to_weight =
      weights->offset() / ElementBytes(*weights) - residual.offset() / kept_bytes;
  absl::Status status;
  flow_.content(from.buffer)
      .ForEach({(first + to_encoded) * bytes, (end + to_encoded) * bytes},
               [&](const ByteRange& piece, int number) {
                 if (number == ByteMap::kNone || !status.ok()) return;
                 const Value& value = flow_.values()[number];
                 if (value.zero) return;
                 if (value.role != Value::kGradient || value.scatter >= 0) {
                   status = Refuse(where, ": keeps the residual of '", residual.tensor(),
                                   "' of what byte ", piece.begin, " of ",
                                   BufferText(program_, from.buffer),
                                   " holds, which is no gradient of this rank's");
                   return;
                 }
                 uses_.push_back({.instruction = i,
                                  .gradient = value.origin,
                                  .weights = {static_cast<int>(weights->buffer()),
                                              to_weight - to_encoded - value.distance},
                                  .residual = &residual});
               });
  return status;
}

const v1::StateRange* Residuals::WeightsOf(const v1::StateRange& residual) const {
  const auto of_tensor = weights_.find(residual.tensor());
  if (of_tensor == weights_.end()) return nullptr;
  const auto same = std::find_if(
      of_tensor->second.begin(), of_tensor->second.end(),
      [&](const v1::StateRange* weights) { return SameRectangle(*weights, residual); });
  return same == of_tensor->second.end() ? nullptr : *same;
}

absl::Status Residuals::CheckComplete() const {
  const auto where = [this](int i) {
    return Where(*train_.sequence, train_.sequence->instructions(i));
  };
  for (const Use& use : uses_) {
    const int stranger = flow_.values().links().FindStranger(use.gradient, use.weights);
    if (stranger < 0) continue;
    return Refuse(where(use.instruction), ": keeps the residual of '", use.residual->tensor(),
                  "' of what ", where(stranger), " made as the gradient of other weights");
  }
  for (const v1::StateRange& range : program_.state()) {
    if (range.kind() != v1::RESIDUAL) continue;
    const Rows rows = FilledBytes(range);
    absl::Status status;
    for (int64_t r = 0; r < rows.rows && status.ok(); ++r) {
      const int64_t begin = rows.offset + r * rows.stride_bytes;
      kept_[range.buffer()].ForEach(
          {begin, begin + rows.row_bytes}, [&](const ByteRange& piece, int number) {
            if (number != ByteMap::kNone || !status.ok()) return;
            status = Refuse("'", train_.sequence->name(), "': byte ", piece.begin, " of ",
                            BufferText(program_, range.buffer()), ", the residual of '",
                            range.tensor(), "', is kept by no encode_blocks");
          });
    }
    RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

}  // namespace terrace::check
