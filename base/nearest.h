// "Did you mean": the known words nearest to a mistyped one. Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace terrace {

// The candidate with the smallest edit distance (insert, delete, replace, swap of neighbours; case
// is ignored), or empty when none is nearer than about a third of the word's length. Ties: the
// first.
std::string_view Nearest(std::string_view word, const std::vector<std::string_view>& candidates);

// Up to three of `names`, the nearest first and however far, as text: "a, b, c"; "" when `names` is
// empty.
std::string NearestNames(std::string_view wanted, const std::vector<std::string>& names);

}  // namespace terrace
