// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "base/status_macros.h"
#include "proto/check/instruction/families.h"
#include "proto/check/instruction/refuse.h"
#include "proto/program/op_codec.h"

namespace terrace::check {

using kernels::TensorShape;

namespace {

// Walking a strided operand row by row must end.
constexpr int64_t kStridedRowsMax = 1 << 24;

bool Fits(const v1::Operand& operand, const OperandRule& rule) {
  if (rule.optional && operand.access() == v1::ACCESS_UNSPECIFIED) return true;
  if (operand.access() != rule.access || operand.row_stride() != 0) return false;
  if (rule.dtype != v1::DTYPE_UNSPECIFIED && operand.dtype() != rule.dtype) return false;
  if (rule.any_shape) return true;
  if (operand.shape_size() != static_cast<int>(rule.shape.size())) return false;
  for (int d = 0; d < operand.shape_size(); ++d) {
    if (rule.shape[d] != 0 && operand.shape(d) != rule.shape[d]) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<Access> CheckOperand(const v1::Program& program, const v1::Sequence& sequence,
                                    const v1::Operand& operand, int index,
                                    const InstructionName& where, TensorShape* shape) {
  if (!v1::Access_IsValid(operand.access()))
    return Refuse(where, ": access ", operand.access(), " does not exist");
  if (operand.buffer() >= static_cast<uint32_t>(program.buffers_size())) {
    return Refuse(where, ": buffer ", operand.buffer(), " of ", program.buffers_size(),
                  " does not exist");
  }
  const v1::Buffer& buffer = program.buffers(operand.buffer());
  const auto buffer_text = [&] { return BufferText(program, operand.buffer()); };
  if (buffer.lifetime() == v1::STEP && buffer.sequence() != sequence.name()) {
    return Refuse(where, ": ", buffer_text(), " belongs to sequence '", buffer.sequence(), "'");
  }
  const absl::StatusOr<TensorShape> decoded = DecodeShape(operand);
  if (!decoded.ok()) return Refuse(where, ": ", buffer_text(), ": ", decoded.status().message());
  *shape = *decoded;
  const int64_t element_bytes = kernels::SizeOf(shape->dtype);
  if (operand.offset() < 0 || operand.offset() % element_bytes != 0) {
    return Refuse(where, ": offset ", operand.offset(), " in ", buffer_text(),
                  " must be a multiple of ", element_bytes);
  }
  if (operand.offset() > buffer.bytes() || shape->SpanBytes() > buffer.bytes() - operand.offset()) {
    return Refuse(where, ": bytes [", operand.offset(), ", +", shape->SpanBytes(),
                  ") must lie inside ", buffer_text(), " of ", buffer.bytes(), " bytes");
  }
  Access access = {.buffer = operand.buffer(),
                   .offset = operand.offset(),
                   .row_bytes = shape->SpanBytes(),
                   .reads = operand.access() != v1::WRITE,
                   .writes = operand.access() != v1::READ,
                   .operand = index};
  if (!shape->dense() && shape->rows() > 1) {
    if (shape->rows() > kStridedRowsMax)
      return Refuse(where, ": has ", shape->rows(), " strided rows, at most ", kStridedRowsMax);
    access.rows = shape->rows();
    access.row_bytes = shape->RowElements() * element_bytes;
    access.stride_bytes = shape->row_stride * element_bytes;
  }
  return access;
}

absl::Status CheckRules(const v1::Instruction& instruction, absl::Span<const OperandRule> rules,
                        const InstructionName& where) {
  if (instruction.operands_size() != static_cast<int>(rules.size())) {
    return Refuse(where, ": has ", instruction.operands_size(), " operands, must have ",
                  rules.size());
  }
  for (int i = 0; i < instruction.operands_size(); ++i) {
    const OperandRule& rule = rules[i];
    if (Fits(instruction.operands(i), rule)) continue;
    return Refuse(where, ": operand ", i, " is not what program.proto says of this instruction: ",
                  v1::Access_Name(rule.access), ", dense, ",
                  rule.dtype == v1::DTYPE_UNSPECIFIED ? "of any type" : v1::DType_Name(rule.dtype),
                  rule.any_shape ? "" : absl::StrCat(", ", rule.shape.size(), " dimensions"));
  }
  return absl::OkStatus();
}

int64_t Elements(const v1::Operand& operand) {
  int64_t elements = 1;
  for (int64_t size : operand.shape()) elements *= size;
  return elements;
}

bool Overlap(const Access& a, const Access& b) {
  if (a.buffer != b.buffer || a.offset >= b.end() || b.offset >= a.end()) return false;
  if (a.rows == 1 && b.rows == 1) return true;
  if (a.rows > 1 && b.rows > 1 && a.stride_bytes == b.stride_bytes) {
    // Columns of one matrix, whose rows begin where those of the first begin.
    const Access& first = a.offset <= b.offset ? a : b;
    const Access& second = a.offset <= b.offset ? b : a;
    const int64_t column = (second.offset - first.offset) % first.stride_bytes;
    const int64_t row = (second.offset - first.offset) / first.stride_bytes;
    if (row >= first.rows) return false;
    return column < first.row_bytes ||
           (column + second.row_bytes > first.stride_bytes && row + 1 < first.rows);
  }
  int64_t i = 0, j = 0;
  while (i < a.rows && j < b.rows) {
    const int64_t a_begin = a.offset + i * a.stride_bytes;
    const int64_t b_begin = b.offset + j * b.stride_bytes;
    if (a_begin < b_begin + b.row_bytes && b_begin < a_begin + a.row_bytes) return true;
    if (a_begin < b_begin) {
      ++i;
    } else {
      ++j;
    }
  }
  return false;
}

}  // namespace terrace::check
