// The arguments of the dropout kernel for one row, which all instruction sets share.
//
// Thread-safe: plain data.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/dropout.h"

namespace terrace::kernels::cpu {

// The columns of one token that begin at `column`.
struct DropoutRow {
  DropoutRule rule;
  uint32_t sequence = 0;
  uint32_t position = 0;
  int64_t column = 0;
  bool accumulate = false;
};

}  // namespace terrace::kernels::cpu
