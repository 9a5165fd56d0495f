// Layouts in the words of the spec's keys, for plans, reasons and suggestions.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "proto/v1/plan.pb.h"

namespace terrace {

// "device 25 % + nvme 75 %", a tier alone without its 100 %; empty when all parts are 0.
std::string TierSharesText(const v1::TierShares& shares);

// "64MiB"; "0" when matrices are whole.
std::string TilesText(int64_t tile_bytes);

// A key, under "layout" but for those of "formats", and its value: those that change how fast and
// how large a layout is.
using LayoutWord = std::pair<std::string, std::string>;
std::vector<LayoutWord> LayoutWords(const v1::Layout& layout);

// "dp 2, tp 1, pp 4 (1f1b), ...": sizes always, how they are used where there is a choice.
std::string LayoutText(const v1::Layout& layout);

// "fp8", "fp8 (by layer: 1 bf16, 31 fp8; lm_head fp32)": of products.
std::string PrecisionText(const v1::Layout& layout);

// "tp 2", "recompute block": the keys in which `to` differs from `from`, with its values.
std::vector<std::string> Differences(const v1::Layout& from, const v1::Layout& to);

}  // namespace terrace
