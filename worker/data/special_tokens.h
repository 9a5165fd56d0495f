// The tokens that begin, end and pad a text, from the files that lie beside a tokenizer.
//
// In this order: tokenizer_config.json and special_tokens_map.json, what the tokenizer's own file
// says, the eos_token_id of the model's config, of config.json and of generation_config.json beside
// it. Names are never guessed.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace {

struct SpecialToken {
  int32_t id = 0;
  std::string text;
};

struct SpecialTokens {
  std::optional<SpecialToken> begin;
  std::optional<SpecialToken> end;  // ends every document of the training data
  std::optional<SpecialToken> padding;
  std::vector<int32_t> stops;  // generation ends at each of these; `end` is the first
};

// What a tokenizer tells about its tokens.
struct TokenNames {
  std::function<std::optional<int32_t>(const std::string& text)> id_of;
  // The text of a token that stands for itself (an added or control token); nullopt for others.
  std::function<std::optional<std::string>(int64_t id)> special_text;
  SpecialTokens own;  // told by the tokenizer's file
};

// `file`: the tokenizer's. `model_config`: the text of the model's config.json; may be empty.
// Appends sentences for a log to `remarks`. INVALID_ARGUMENT when a file beside it is damaged or
// names an end token that the tokenizer lacks.
absl::StatusOr<SpecialTokens> ReadSpecialTokens(const std::string& file,
                                                std::string_view model_config,
                                                const TokenNames& names,
                                                std::vector<std::string>* remarks);

// The eos_token_id of a config.json or generation_config.json: a number or a list of them. Empty
// when there is none.
std::vector<int64_t> EndIdsOf(std::string_view config_json);

}  // namespace terrace
