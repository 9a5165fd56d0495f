// Bridges std::string_view and Debian's absl::string_view, which is a type of its own there. Inside
// Terrace a view is a std::string_view; Abseil's functions get Absl(view), and what they return
// goes through Std(view).
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "absl/strings/string_view.h"

namespace terrace {

inline absl::string_view Absl(std::string_view view) { return {view.data(), view.size()}; }
inline std::string_view Std(absl::string_view view) { return {view.data(), view.size()}; }

}  // namespace terrace
