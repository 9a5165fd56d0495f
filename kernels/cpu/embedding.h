// A row of a table in the table's element type. Internal to embedding.cc, in a header because that
// file is compiled once for each instruction set.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/tensor_view.h"

namespace terrace::kernels::cpu {

struct TableRow {
  const void* data = nullptr;  // none
  DType dtype = DType::kF32;
};

}  // namespace terrace::kernels::cpu
