// Names of workers and people: what may be shown, logged, compared and put into a path as it is.
//
// Pure. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace terrace {

// INVALID_ARGUMENT, which begins with `what`, unless it has 1 to 128 letters, digits, '.', '_', '@'
// and '-', the first of them a letter or digit.
absl::Status CheckName(std::string_view what, std::string_view name);

}  // namespace terrace
