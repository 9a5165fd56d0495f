// What a tokenizer.json tells about its special tokens.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "worker/data/special_tokens.h"
#include "worker/data/tokenizer_json/document.h"
#include "worker/data/tokenizer_json/pipeline.h"

namespace terrace::tokenizer_json {

// Names of the tokens of `pipeline`, borrowed, and those that the post_processor of `file` puts in
// front of a text and behind it. Terrace ends documents and begins them with nothing; that is
// remarked where the post-processor does otherwise.
TokenNames NamesOf(const Pipeline& pipeline, const Json& file, Remarks* remarks);

// Where nothing names the end token: the only special token that has no other part to play, said in
// `remarks`; none when there are several.
void TakeOnlySpecialToken(const Pipeline& pipeline, SpecialTokens* special, Remarks* remarks);

}  // namespace terrace::tokenizer_json
