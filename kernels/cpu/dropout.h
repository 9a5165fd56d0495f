// What the dropout kernel is told of a row: the same for every instruction set.
//
// Thread-safe: plain data.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/dropout.h"

namespace terrace::kernels::cpu {

// Columns of one token from `column` on.
struct DropoutRow {
  DropoutRule rule;
  uint32_t sequence = 0;
  uint32_t position = 0;
  int64_t column = 0;
  bool accumulate = false;
};

}  // namespace terrace::kernels::cpu
