// Which known names a person may have meant.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace terrace {

// Up to three of `names` with the smallest edit distance to `wanted`, as text: "a, b, c"; "" when
// `names` is empty.
std::string NearestNames(std::string_view wanted, const std::vector<std::string>& names);

}  // namespace terrace
