// SPDX-License-Identifier: Apache-2.0
#include "proto/check/value/flow.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/status_macros.h"
#include "kernels/tensor_view.h"
#include "proto/check/instruction/refuse.h"
#include "proto/check/value/announced.h"
#include "proto/check/value/state.h"

namespace terrace::check {
namespace {

ByteRange SpanOf(const Access& access) { return {access.offset, access.end()}; }

// Loads a batch with at least so many operands.
bool LoadsBatch(const v1::Sequence& sequence, int operands) {
  return std::any_of(sequence.instructions().begin(), sequence.instructions().end(),
                     [operands](const v1::Instruction& instruction) {
                       return instruction.input().kind() == v1::LOAD_BATCH &&
                              instruction.operands_size() >= operands;
                     });
}

// Where one batch brings starts, all do (Flow::Input).
bool BringsStarts(const v1::Program& program) {
  return std::any_of(
      program.sequences().begin(), program.sequences().end(),
      [](const v1::Sequence& sequence) { return LoadsBatch(sequence, kStartsOfBatch + 1); });
}

}  // namespace

Flow::Flow(const v1::Program& program, bool transfers_in_parts, Values* values)
    : program_(program),
      transfers_in_parts_(transfers_in_parts),
      packs_(BringsStarts(program)),
      pairs_(program.rules().pairs()),
      values_(*values),
      content_(program.buffers_size()),
      versions_(program.buffers_size(), 0) {
  FillFromManifest();
}

Value Flow::OfState(uint32_t buffer) const {
  Value value = values_.Constant();
  value.role = Value::kState;
  value.origin = static_cast<int>(buffer);
  return value;
}

void Flow::FillFromManifest() {
  const uint32_t tensor = values_.tensor();
  const std::set<std::string> frozen = pairs_ ? FrozenTensors(program_) : std::set<std::string>();
  std::map<uint32_t, Scatter> scatters;  // by buffer
  for (const v1::StateRange& range : program_.state()) {
    Value value = OfState(range.buffer());
    value.trained = pairs_ && !frozen.contains(range.tensor());
    if (range.split() != v1::StateRange::WHOLE) {
      value.same_block = std::min(tensor, std::max(1u, range.split_block()));
    }
    const Rows rows = RowsIn(range);
    ByteRange bytes = {rows.offset,
                       rows.offset + (rows.rows - 1) * rows.stride_bytes + rows.row_bytes};
    ByteMap* content = &content_[range.buffer()];
    if (range.by_rank()) {
      value.varies = values_.Large({v1::CONTEXT, v1::DATA_SHARD});
    } else if (range.shard_elements() > 0) {
      Scatter& scatter = scatters[range.buffer()];
      scatter.shard_elements = range.shard_elements();
      scatter.shards = ShardCount(program_.grid());
      scatter.axes = values_.Large({v1::CONTEXT, v1::DATA_SHARD});
      content = &scatter.content;
      const int64_t element_bytes = kernels::SizeOf(static_cast<kernels::DType>(range.dtype()));
      bytes = {bytes.begin / element_bytes, bytes.end / element_bytes};
    }
    // Columns of several tensors in one matrix: between them lie the others'.
    std::vector<std::pair<ByteRange, int>> pieces;
    content->ForEach(bytes, [&](const ByteRange& piece, int number) {
      Value joined = value;
      if (number != ByteMap::kNone) {
        joined.same_block = std::gcd(value.same_block, values_[number].same_block);
        joined.trained = value.trained || values_[number].trained;
      }
      pieces.emplace_back(piece, values_.Number(joined));
    });
    for (const auto& [piece, number] : pieces) content->Set(piece, number);
  }
  for (auto& [buffer, scatter] : scatters) {
    Value value = OfState(buffer);
    const int64_t bytes = program_.buffers(buffer).bytes();
    value.scatter = values_.AddScatter(std::move(scatter));
    content_[buffer].Set({0, bytes}, values_.Number(value));
  }
}

void Flow::Begin(const CheckedSequence* sequence) {
  sequence_ = sequence;
  documents_ = packs_ && LoadsBatch(*sequence->sequence, 0);
  stage_sums_.clear();
  sent_.clear();
  received_.clear();
  for (int b = 0; b < program_.buffers_size(); ++b) {
    if (program_.buffers(b).lifetime() != v1::PERSISTENT) content_[b].Clear();
  }
}

absl::Status Flow::Step(int i) {
  RETURN_IF_ERROR(Apply(i));
  for (const Access& access : sequence_->instructions[i].accesses) {
    if (access.writes) ++versions_[access.buffer];
  }
  return absl::OkStatus();
}

absl::Status Flow::Apply(int i) {
  switch (sequence_->sequence->instructions(i).kind_case()) {
    case v1::Instruction::kCompute:
      Compute(i);
      return absl::OkStatus();
    case v1::Instruction::kCollective:
      return Collective(i);
    case v1::Instruction::kTransfer:
      if (sequence_->sequence->instructions(i).transfer().kind() == v1::SEND) return Send(i);
      Receive(i);
      return absl::OkStatus();
    case v1::Instruction::kInput:
      Input(i);
      return absl::OkStatus();
    case v1::Instruction::kCopy:
      for (int from = 0; from < sequence_->sequence->instructions(i).operands_size(); from += 2) {
        Copy(i, from, from + 1);
      }
      return absl::OkStatus();
    default:
      return absl::OkStatus();
  }
}

// ---- helpers ------------------------------------------------------------------------------------

void Flow::ForEach(const Access& access, Visit visit) const {
  content_[access.buffer].ForEach(SpanOf(access), [&](const ByteRange& bytes, int number) {
    if (number != ByteMap::kNone) visit(bytes, values_[number]);
  });
}

std::vector<Flow::Piece> Flow::PiecesOf(const Access& access) const {
  std::vector<Piece> pieces;
  ForEach(access, [&](const ByteRange& bytes, const Value& value) {
    pieces.push_back({bytes, value});
  });
  return pieces;
}

std::string Flow::WhereIs(int i) const {
  return Where(*sequence_->sequence, sequence_->sequence->instructions(i));
}

const Access& Flow::At(int i, int operand) const {
  return *sequence_->instructions[i].Find(operand);
}

int64_t Flow::ElementBytes(int i, int operand) const {
  return kernels::SizeOf(
      static_cast<kernels::DType>(sequence_->sequence->instructions(i).operands(operand).dtype()));
}

void Flow::Write(const Access& access, const Value& value, int i) {
  ByteMap& content = content_[access.buffer];
  if (access.rows == 1) {
    content.Set(SpanOf(access), values_.Number(value));
    return;
  }
  std::vector<std::pair<ByteRange, Value>> pieces;
  content.ForEach(SpanOf(access), [&](const ByteRange& bytes, int number) {
    pieces.emplace_back(bytes, number == ByteMap::kNone
                                   ? value
                                   : values_.Join(values_.AsInput(values_[number], i), value, i));
  });
  for (const auto& [bytes, joined] : pieces) content.Set(bytes, values_.Number(joined));
}

void Flow::Copy(int i, int from, int to, int64_t packed) {
  const Access& source = At(i, from);
  const Access& target = At(i, to);
  if (source.rows > 1 || target.rows > 1) return Function(i);
  const int64_t source_bytes = ElementBytes(i, from), target_bytes = ElementBytes(i, to);
  const int64_t moved = target.offset / target_bytes - source.offset / source_bytes * packed;
  const auto to_target = [&](int64_t byte) {
    return target.offset + (byte - source.offset) / source_bytes * packed * target_bytes;
  };
  const std::vector<Piece> pieces = PiecesOf(source);
  content_[target.buffer].Set(SpanOf(target), ByteMap::kNone);
  for (const Piece& piece : pieces) {
    Value value = Moved(piece.value, packed > 1 ? moved : moved * Packed(piece.value));
    value.rounded =
        value.rounded || (value.role != Value::kNothing && source_bytes != target_bytes);
    content_[target.buffer].Set({to_target(piece.bytes.begin), to_target(piece.bytes.end)},
                                values_.Number(value));
  }
}

int64_t Flow::Packed(const Value& value) {
  return value.encoded_by < 0 ? 1 : kernels::RowOf(value.encoded_as.format).packed;
}

// The value of an element, when `moved` elements further on in another buffer.
Value Flow::Moved(Value value, int64_t moved) {
  if (value.scatter >= 0) value.shift -= moved;
  if (value.role != Value::kNothing) value.distance -= moved;
  return value;
}

}  // namespace terrace::check
