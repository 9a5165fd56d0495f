// What a rank gets of its daemon's environment: variables of a list, because the others may hold
// secrets (tokens of registries, keys of clouds), and a rank reads data that others wrote.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

struct PassedVariable {
  std::string_view name;  // ends with '*': all that begin so
  std::string_view why;
};

// The list.
std::span<const PassedVariable> PassedVariables();

// Of `environment` ("NAME=value", null at its end) the variables of the list and those in `also`.
std::vector<std::string> PassedEnvironment(const char* const* environment,
                                           std::span<const std::string> also);

}  // namespace terrace
