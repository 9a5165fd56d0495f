// Where the documents of a sequence of tokens end: where its files say so, else behind the
// tokenizer's end-of-text token.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "worker/data/token_segment.h"

namespace terrace {

using DocumentVisitor = std::function<void(int64_t begin, int64_t tokens)>;

// Each document in order, with its position in the whole sequence. INVALID_ARGUMENT where a file
// does not say where its documents end and there is no token that does, or there are too many
// tokens.
absl::Status VisitDocuments(const TokenSequence& tokens, std::optional<int32_t> end_of_text,
                            const DocumentVisitor& visit);

}  // namespace terrace
