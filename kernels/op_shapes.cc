// Matches operands against the symbolic shapes of the op table, then applies the op's own rules
// (op_rules.h).
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>

#include "kernels/op_complaint.h"
#include "kernels/op_rules.h"
#include "kernels/op_table.h"

namespace terrace::kernels {
namespace {

std::string Number(int64_t value) { return std::to_string(value); }

bool SizesAreSane(const TensorShape& shape) {
  if (shape.dims < 0 || shape.dims > kMaxDims || SizeOf(shape.dtype) == 0) return false;
  int64_t row_elements = 1;
  for (int d = 0; d < shape.dims; ++d) {
    if (shape.size[d] < 1 || shape.size[d] > kMaxSpanElements) return false;
    if (d > 0 && __builtin_mul_overflow(row_elements, shape.size[d], &row_elements)) return false;
  }
  int64_t span = 0;
  return !__builtin_mul_overflow(shape.rows(), std::max(shape.row_stride, row_elements), &span) &&
         span <= kMaxSpanElements;
}

std::string CheckElements(const OpRow& row, int index, const TensorShape& shape,
                          std::optional<DType>* activation) {
  const bool real =
      shape.dtype == DType::kF32 || shape.dtype == DType::kBF16 || shape.dtype == DType::kF16;
  switch (row.operands[index].elements) {
    case Elements::kI32:
      return shape.dtype == DType::kI32 ? "" : Complain(row, index, shape, "have i32 elements");
    case Elements::kF32:
      return shape.dtype == DType::kF32 ? "" : Complain(row, index, shape, "have f32 elements");
    case Elements::kBF16:
      return shape.dtype == DType::kBF16 ? "" : Complain(row, index, shape, "have bf16 elements");
    case Elements::kU8:
      return shape.dtype == DType::kU8 ? "" : Complain(row, index, shape, "have u8 elements");
    case Elements::kMoment:
      if (shape.dtype != DType::kF32 && shape.dtype != DType::kBF16)
        return Complain(row, index, shape, "have f32 or bf16 elements");
      break;
    case Elements::kGradient:
      return shape.dtype == DType::kF32 || shape.dtype == DType::kBF16
                 ? ""
                 : Complain(row, index, shape, "have f32 or bf16 elements");
    case Elements::kFloat:
      return real ? "" : Complain(row, index, shape, "have f32, bf16 or f16 elements");
    case Elements::kActivation:
      break;
  }
  if (!real) return Complain(row, index, shape, "have f32, bf16 or f16 elements");
  if (activation->value_or(shape.dtype) != shape.dtype) {
    return Complain(row, index, shape,
                    "have " + std::string(Name(**activation)) + " elements like the op's others");
  }
  *activation = shape.dtype;
  return "";
}

std::string CheckStride(const OpRow& row, int index, const TensorShape& shape) {
  if (shape.row_stride < shape.RowElements()) {
    return Complain(row, index, shape,
                    "have a row stride of at least " + Number(shape.RowElements()));
  }
  if (shape.dense() || (row.operands[index].strided && shape.dims > 1)) return "";
  return Complain(row, index, shape, "be dense");
}

// The sizes that the symbols of a row stand for, filled by the first operand that has them.
struct Bindings {
  struct Symbol {
    int64_t size = 0;
    int operand = -1;  // who bound it; -1: nobody yet
  };
  std::array<Symbol, 128> symbols = {};
  std::span<const int64_t> leading;  // what ".." stands for
  int leading_operand = -1;
};

// The symbols of one operand, no more than a shape has dimensions and the "..".
struct Symbols {
  std::array<std::string_view, kMaxDims + 1> all;
  int begin = 0, end = 0;

  int size() const { return end - begin; }
  std::string_view operator[](int i) const { return all[begin + i]; }
};

Symbols Split(std::string_view dims) {
  Symbols symbols;
  while (!dims.empty()) {
    const size_t comma = std::min(dims.find(','), dims.size());
    symbols.all[symbols.end++] = dims.substr(0, comma);
    dims.remove_prefix(std::min(comma + 1, dims.size()));
  }
  return symbols;
}

// A program has as many dimensions as it has instructions, times ten: no text is made of those that
// match.
std::string MatchSymbol(const OpRow& row, int index, const TensorShape& shape, int d,
                        std::string_view symbol, Bindings* bindings) {
  const int64_t size = shape.size[d];
  const auto complain = [&](const std::string& what) {
    return Complain(row, index, shape, "have dimension " + Number(d) + " equal to " + what);
  };
  if (symbol[0] >= '0' && symbol[0] <= '9') {
    return size == symbol[0] - '0' ? "" : complain(std::string(symbol));
  }
  auto& bound = bindings->symbols[static_cast<unsigned char>(symbol[0])];
  if (bound.operand < 0) bound = {.size = size, .operand = index};
  if (bound.size == size) return "";
  return complain(std::string(symbol) + " = " + Number(bound.size) + ", as in '" +
                  std::string(row.operands[bound.operand].name) + "'");
}

std::string MatchLeading(const OpRow& row, int index, const TensorShape& shape, int leading_dims,
                         Bindings* bindings) {
  const auto leading = std::span(shape.size).first(leading_dims);
  if (bindings->leading_operand < 0) {
    bindings->leading = leading;
    bindings->leading_operand = index;
  }
  if (std::ranges::equal(bindings->leading, leading)) return "";
  std::string sizes;
  for (int64_t size : bindings->leading) sizes += (sizes.empty() ? "" : ",") + Number(size);
  return Complain(row, index, shape,
                  "have dimensions [" + sizes + "], as '" +
                      std::string(row.operands[bindings->leading_operand].name) + "' has");
}

// The symbols of operand `index` in the order in which it is stored.
Symbols StoredSymbols(const OpRow& row, const OpAttrs& attrs, int index) {
  Symbols symbols = Split(row.operands[index].dims);
  if (row.op != Op::kMatmul || index > 1) return symbols;
  const auto& matmul = std::get<MatmulAttrs>(attrs);
  if (index == 0 ? matmul.transpose_a : matmul.transpose_b) {
    std::swap(symbols.all[0], symbols.all[1]);
  }
  return symbols;
}

std::string MatchDims(const OpRow& row, const OpAttrs& attrs, int index, const TensorShape& shape,
                      Bindings* bindings) {
  Symbols symbols = StoredSymbols(row, attrs, index);
  const bool any_leading = symbols[0] == "..";
  if (any_leading) ++symbols.begin;
  const int leading_dims = shape.dims - symbols.size();
  if (any_leading ? leading_dims < 1 : leading_dims != 0) {
    return Complain(row, index, shape,
                    "have the dimensions " + std::string(row.operands[index].dims));
  }
  if (any_leading) {
    std::string error = MatchLeading(row, index, shape, leading_dims, bindings);
    if (!error.empty()) return error;
  }
  for (int d = leading_dims; d < shape.dims; ++d) {
    std::string error = MatchSymbol(row, index, shape, d, symbols[d - leading_dims], bindings);
    if (!error.empty()) return error;
  }
  return "";
}

std::string CheckOperand(const OpRow& row, const OpAttrs& attrs, int index,
                         const TensorShape& shape, std::optional<DType>* activation,
                         Bindings* bindings) {
  if (shape.absent()) {
    return row.operands[index].optional ? "" : Complain(row, index, shape, "be given");
  }
  if (!SizesAreSane(shape)) {
    return std::string(row.name) + ": operand '" + std::string(row.operands[index].name) +
           "' must have 1 to " + Number(kMaxDims) +
           " dimensions, each at least 1, and fewer than 2^56 elements";
  }
  std::string error = CheckElements(row, index, shape, activation);
  if (error.empty()) error = CheckStride(row, index, shape);
  if (error.empty()) error = MatchDims(row, attrs, index, shape, bindings);
  return error;
}

}  // namespace

std::string CheckShapes(Op op, const OpAttrs& attrs, std::span<const TensorShape> operands) {
  const OpRow* row = FindRow(op);
  if (row == nullptr) return "op " + Number(static_cast<int>(op)) + " does not exist";
  if (attrs.index() != row->attrs) {
    return std::string(row->name) + ": the attributes are those of another op";
  }
  const int count = OperandCount(op);
  if (static_cast<int>(operands.size()) != count) {
    return std::string(row->name) + ": got " + Number(static_cast<int64_t>(operands.size())) +
           " operands, must be " + Number(count) + " with absent ones counted";
  }
  std::optional<DType> activation;
  Bindings bindings;
  for (int i = 0; i < count; ++i) {
    std::string error = CheckOperand(*row, attrs, i, operands[i], &activation, &bindings);
    if (!error.empty()) return error;
  }
  return CheckOwnRules(*row, attrs, operands);
}

}  // namespace terrace::kernels
