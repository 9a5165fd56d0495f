// The files of the web page, as they lie in coordinator/web/assets.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "absl/types/span.h"

namespace terrace {

struct Asset {
  std::string_view name;  // "style.css"
  std::string_view content;
};

absl::Span<const Asset> Assets();

}  // namespace terrace
