// Which tokens of a text the loss counts, where it counts spans of the text: those that hold
// anything of one, also across its border, as transformers' masks of answers have it.
//
// Pure. Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "worker/data/json_line.h"
#include "worker/data/token_segment.h"
#include "worker/data/tokenizer.h"

namespace terrace {

// Appends the text's ids. The tokens that do not count, ascending and apart. `counted`: ascending
// and apart, within the text. Where the tokenizer cannot tell where its tokens end, a token across
// a border is found by tokenising what stands before it, and a few before it may count as well.
std::vector<TokenSpan> EncodeCounted(const Tokenizer& tokenizer, std::string_view text,
                                     const std::vector<TextSpan>& counted,
                                     std::vector<int32_t>* ids);

}  // namespace terrace
