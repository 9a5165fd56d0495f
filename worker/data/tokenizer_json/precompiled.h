// The normalizer "Precompiled" of a tokenizer.json: SentencePiece's character map, as the
// tokenizers library applies it, which is not as SentencePiece does.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/statusor.h"
#include "worker/data/tokenizer_json/document.h"
#include "worker/data/tokenizer_json/normalizer.h"

namespace terrace::tokenizer_json {

// {"type": "Precompiled", "precompiled_charsmap": "<base64>"}
absl::StatusOr<Normalizer::Step> ReadPrecompiled(const Json& json, Remarks* remarks);

}  // namespace terrace::tokenizer_json
