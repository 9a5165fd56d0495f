// A tokenizer made of the parts of a tokenizer.json: added tokens are cut out of the text, the rest
// is normalized, normalized added tokens are cut out of that, and what is left is pre-tokenized and
// goes to the model piece by piece.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker/data/tokenizer.h"
#include "worker/data/tokenizer_json/added_tokens.h"
#include "worker/data/tokenizer_json/decoder.h"
#include "worker/data/tokenizer_json/model.h"
#include "worker/data/tokenizer_json/normalizer.h"
#include "worker/data/tokenizer_json/pre_tokenizer.h"

namespace terrace::tokenizer_json {

struct Pipeline {
  std::vector<AddedToken> added;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<Model> model;
  Decoder decoder;
};

std::unique_ptr<Tokenizer> MakeTokenizer(Pipeline pipeline, SpecialTokens special,
                                         std::string fingerprint);

}  // namespace terrace::tokenizer_json
