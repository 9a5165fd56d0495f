// Words of a shell command line: quotes, backslashes, continued lines and comments as sh has them;
// nothing is expanded.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace {

// INVALID_ARGUMENT when a quote is left open.
absl::StatusOr<std::vector<std::string>> ShellWords(std::string_view text);

}  // namespace terrace
