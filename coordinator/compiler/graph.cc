// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/graph.h"

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

Access AccessOf(const Node& node, int operand) {
  if (node.operands[operand].absent()) return Access::kNone;
  if (const Compute* compute = node.compute()) {
    return kernels::OperandAccess(compute->op, compute->attrs, operand);
  }
  if (std::holds_alternative<Collective>(node.what)) return Access::kUpdate;
  return std::holds_alternative<Input>(node.what) ? Access::kWrite : Access::kRead;
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
