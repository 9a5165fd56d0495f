// Runs one CPU kernel on vectors, for tests: shapes checked, workspace given.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kernels/cpu/registry.h"

namespace terrace::kernels::cpu {

// A view of dense data that the caller keeps.
inline TensorView ViewOf(DType dtype, void* data, std::vector<int64_t> sizes) {
  TensorView view;
  view.dtype = dtype;
  view.dims = static_cast<int>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), view.size.begin());
  view.row_stride = view.RowElements();
  view.data = data;
  return view;
}
inline TensorView ViewOf(std::vector<float>& data) {
  return ViewOf(DType::kF32, data.data(), {static_cast<int64_t>(data.size())});
}

inline Status Launch(Op op, const OpAttrs& attrs, const std::vector<TensorView>& operands,
                     int threads = 1) {
  const std::vector<TensorShape> shapes(operands.begin(), operands.end());
  EXPECT_EQ(CheckShapes(op, attrs, shapes), "");
  const int64_t bytes = WorkspaceBytes(op, attrs, shapes, threads);
  std::vector<std::byte> workspace(bytes + 64);
  void* aligned = workspace.data();
  size_t space = workspace.size();
  std::align(64, bytes, aligned, space);
  return Find(op)(attrs, operands,
                  {.threads = threads,
                   .workspace = static_cast<std::byte*>(aligned),
                   .workspace_bytes = bytes});
}

}  // namespace terrace::kernels::cpu
