// What a layout keeps of the keys that a spec pins. Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "proto/report/layout_text.h"
#include "proto/v1/job.pb.h"

namespace terrace {

// "layout.tp 2": the pinned keys to which the layout does not hold, with its values.
std::vector<std::string> Unpinned(const v1::LayoutSpec& pinned, const v1::Layout& layout);

}  // namespace terrace
