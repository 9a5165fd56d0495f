// SentencePiece models (*.model), through the library itself, so that ids equal its own.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/data/tokenizer.h"

namespace terrace {

// NOT_FOUND, or INVALID_ARGUMENT when `path` is not a SentencePiece model.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadSentencePieceTokenizer(const std::string& path);

}  // namespace terrace
