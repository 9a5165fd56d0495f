// The check of row numbers that come from data, so that a bad token is an error and not a stray
// access.
//
// Internal to kernels/cpu. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "kernels/kernel.h"

namespace terrace::kernels::cpu {

// `index` is i32[n], dense; `what` names it in the message. An error unless all of it lies in [0,
// rows).
inline Status CheckRowIndex(const char* what, const TensorView& index, int64_t rows) {
  const auto* values = index.as<const int32_t>();
  for (int64_t i = 0; i < index.rows(); ++i) {
    if (values[i] >= 0 && values[i] < rows) continue;
    return {std::string(what) + " " + std::to_string(values[i]) + " at position " +
            std::to_string(i) + " is outside the table of " + std::to_string(rows) + " rows"};
  }
  return {};
}

}  // namespace terrace::kernels::cpu
