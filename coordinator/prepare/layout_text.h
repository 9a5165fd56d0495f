// Layouts in a few words of the spec's keys, for reasons and suggestions. Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "proto/v1/job.pb.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

// "dp 2, tp 1, pp 4, ...": all keys that change how fast and how large a layout is.
std::string LayoutText(const v1::Layout& layout);

// "tp 2", "recompute block": the keys in which `to` differs from `from`, with its values.
std::vector<std::string> Differences(const v1::Layout& from, const v1::Layout& to);

// "layout.tp 2": the pinned keys to which the layout does not hold, with its values.
std::vector<std::string> Unpinned(const v1::LayoutSpec& pinned, const v1::Layout& layout);

}  // namespace terrace
