// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/op_memory.h"

#include <bit>
#include <cstring>

#include "kernels/half.h"

namespace terrace::kernels::conformance {
namespace {

float FloatOfBF16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

void WriteElement(DType dtype, double value, std::byte* to) {
  if (dtype == DType::kI32) {
    const auto number = static_cast<int32_t>(value);
    std::memcpy(to, &number, sizeof(number));
  } else if (dtype == DType::kU8) {
    *to = static_cast<std::byte>(value);
  } else if (dtype == DType::kF16) {
    const uint16_t bits = FloatToHalf(static_cast<float>(value));  // it is an f16 number
    std::memcpy(to, &bits, sizeof(bits));
  } else if (dtype == DType::kBF16) {
    // `value` is a bf16 number: the upper half of its f32 form says it all.
    const auto bits =
        static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16);
    std::memcpy(to, &bits, sizeof(bits));
  } else {
    const auto number = static_cast<float>(value);
    std::memcpy(to, &number, sizeof(number));
  }
}

double ReadElement(DType dtype, const std::byte* from) {
  if (dtype == DType::kI32) {
    int32_t number = 0;
    std::memcpy(&number, from, sizeof(number));
    return number;
  }
  if (dtype == DType::kU8) return static_cast<double>(*from);
  if (dtype == DType::kBF16 || dtype == DType::kF16) {
    uint16_t bits = 0;
    std::memcpy(&bits, from, sizeof(bits));
    return dtype == DType::kF16 ? HalfToFloat(bits) : FloatOfBF16(bits);
  }
  float number = 0;
  std::memcpy(&number, from, sizeof(number));
  return number;
}

int64_t OffsetOf(const TensorShape& shape, int64_t element) {
  const int64_t columns = shape.RowElements();
  return (element / columns * shape.row_stride + element % columns) * SizeOf(shape.dtype);
}

void Write(const TensorShape& shape, const Values& values, std::vector<std::byte>* buffer) {
  for (int64_t e = 0; e < shape.Elements(); ++e) {
    WriteElement(shape.dtype, values[e], &(*buffer)[OffsetOf(shape, e)]);
  }
}

}  // namespace

OpMemory::OpMemory(const OpCase& op_case, const std::vector<Values>& values) : op_case_(op_case) {
  const size_t count = op_case.operands.size();
  buffers_.resize(count);
  owner_.resize(count);
  for (size_t i = 0; i < count; ++i) {
    owner_[i] = static_cast<int>(i);
    buffers_[i].assign(op_case.operands[i].SpanBytes(), kPoison);
  }
  for (const SharedMemory& shared : op_case.shared) owner_[shared.operand] = shared.same_as;
  for (size_t i = 0; i < count; ++i) {
    if (IsRead(i)) Write(op_case.operands[i], values[i], &buffers_[owner_[i]]);
  }
}

std::vector<TensorView> OpMemory::Views() {
  std::vector<TensorView> views;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    TensorView view;
    static_cast<TensorShape&>(view) = op_case_.operands[i];
    if (!view.absent()) view.data = buffers_[owner_[i]].data();
    views.push_back(view);
  }
  return views;
}

Values OpMemory::Read(int index) const {
  const TensorShape& shape = op_case_.operands[index];
  Values values(shape.Elements());
  for (int64_t e = 0; e < shape.Elements(); ++e) {
    values[e] = ReadElement(shape.dtype, &buffers_[owner_[index]][OffsetOf(shape, e)]);
  }
  return values;
}

bool OpMemory::GapsAreUntouched(int index) const {
  const TensorShape& shape = op_case_.operands[index];
  const std::vector<std::byte>& buffer = buffers_[owner_[index]];
  const int64_t row_bytes = shape.RowElements() * SizeOf(shape.dtype);
  const int64_t stride_bytes = shape.row_stride * SizeOf(shape.dtype);
  for (size_t at = 0; at < buffer.size(); ++at) {
    if (static_cast<int64_t>(at) % stride_bytes >= row_bytes && buffer[at] != kPoison) return false;
  }
  return true;
}

bool OpMemory::IsOnlyRead(int index) const {
  if (AccessOf(index) != Access::kRead) return false;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (owner_[i] == owner_[index] && AccessOf(i) != Access::kRead) return false;
  }
  return true;
}

}  // namespace terrace::kernels::conformance
