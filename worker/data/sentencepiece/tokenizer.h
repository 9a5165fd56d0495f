// SentencePiece models (*.model), unigram and BPE: ids equal those of the `sentencepiece` library.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/data/tokenizer.h"

namespace terrace {

// NOT_FOUND, or INVALID_ARGUMENT when `path` is not a SentencePiece model that can be used.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadSentencePieceTokenizer(
    const std::string& path, std::string_view model_config);

}  // namespace terrace
