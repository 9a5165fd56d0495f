// The commands of a shell script that starts a training, as lists of words: people keep flags in
// arrays (ARGS=(--bf16 ...)) and in texts (ARGS="--bf16 ..."), and numbers in variables.
//
// Arrays and texts with flags stand where they are set, not where they are used. Variables that
// were set to plain words are put in, with ${NAME:-otherwise} too; nothing else is expanded.
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
absl::StatusOr<std::vector<std::vector<std::string>>> ScriptWords(std::string_view text);

}  // namespace terrace
