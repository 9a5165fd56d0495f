// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/graph/graph.h"

#include <numeric>
#include <utility>

namespace terrace::compiler {

using kernels::Access;

int64_t Value::elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

kernels::TensorShape DenseShape(kernels::DType dtype, const Dims& dims) {
  kernels::TensorShape shape;
  shape.dtype = dtype;
  shape.dims = static_cast<int>(dims.size());
  for (size_t d = 0; d < dims.size(); ++d) shape.size[d] = dims[d];
  shape.row_stride = shape.RowElements();
  return shape;
}

Slice Reshape(Slice slice, const Dims& dims) {
  const bool dense = slice.shape.dense();
  const int64_t stride = slice.shape.row_stride;
  slice.shape = DenseShape(slice.shape.dtype, dims);
  if (!dense) slice.shape.row_stride = stride;
  return slice;
}

Slice Columns(Slice slice, int64_t begin, int64_t count) {
  slice.offset += begin;
  slice.shape.size[1] = count;
  return slice;
}

Slice Rows(Slice slice, int64_t begin, int64_t count) {
  slice.offset += begin * slice.shape.row_stride;
  slice.shape.size[0] = count;
  return slice;
}

Slice Range(const Slice& slice, int64_t begin, int64_t count) {
  return {.value = slice.value,
          .offset = slice.offset + begin,
          .shape = DenseShape(slice.shape.dtype, {count})};
}

Slice Flat(const Slice& slice) { return Range(slice, 0, slice.shape.Elements()); }

bool Communicates(const Node& node) {
  return std::holds_alternative<Collective>(node.what) ||
         std::holds_alternative<Transfer>(node.what);
}

Access AccessOf(const Node& node, int operand) {
  if (node.operands[operand].absent()) return Access::kNone;
  if (const Compute* compute = node.compute()) {
    return kernels::OperandAccess(compute->op, compute->attrs, operand);
  }
  if (node.operands.size() == 1 && node.collective() != nullptr) return Access::kUpdate;
  if (node.collective() != nullptr) return operand == 0 ? Access::kRead : Access::kWrite;
  if (node.copy() != nullptr) return operand % 2 == 0 ? Access::kRead : Access::kWrite;
  if (const auto* transfer = std::get_if<Transfer>(&node.what)) {
    return transfer->kind == v1::SEND ? Access::kRead : Access::kWrite;
  }
  return std::holds_alternative<Input>(node.what) ? Access::kWrite : Access::kRead;
}

bool Reads(const Node& node, int operand) {
  const Access access = AccessOf(node, operand);
  return access == Access::kRead || access == Access::kUpdate;
}

bool Writes(const Node& node, int operand) {
  const Access access = AccessOf(node, operand);
  return access == Access::kWrite || access == Access::kUpdate;
}

std::vector<kernels::TensorShape> ShapesOf(const Node& node) {
  std::vector<kernels::TensorShape> shapes;
  for (const Slice& slice : node.operands) shapes.push_back(slice.shape);
  return shapes;
}

int Graph::Add(Value value) {
  values.push_back(std::move(value));
  return static_cast<int>(values.size()) - 1;
}

Slice Graph::Whole(int value) const {
  return {.value = value, .shape = DenseShape(values[value].dtype, values[value].shape)};
}

Slice Graph::Root(Slice slice) const {
  while (!slice.absent() && values[slice.value].inside != kNone) {
    slice.offset += values[slice.value].inside_offset;
    slice.value = values[slice.value].inside;
  }
  return slice;
}

}  // namespace terrace::compiler
