// A spec that was read here, for a program that takes this one's place and reads it again.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace terrace {

// The path to hand on: `path`, or of a pipe, which can be read once only, what `yaml` was given on
// as standard input.
absl::StatusOr<std::string> SpecForExec(const std::string& path, const std::string& yaml);

}  // namespace terrace
