// The added tokens of a tokenizer.json: texts that are one token wherever they stand, cut out
// before the model sees the rest.
//
// Tokens that are not normalized are looked for in the text as it is, the others in the normalized
// text between them. At each place the longest one counts. Ids follow the `tokenizers` library: a
// token of the model's vocabulary keeps its id there, others are numbered after it in the order of
// the list, whatever the document says.
//
// Thread-safe after construction.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "worker/data/byte_trie.h"
#include "worker/data/tokenizer_json/document.h"

namespace terrace::tokenizer_json {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;  // only between characters that are no word characters
  bool lstrip = false;       // takes the white space to its left with it
  bool rstrip = false;       // ... to its right
  bool normalized = false;
  bool special = false;
};

// `id_of` gives the model's id of a text, `model_tokens` counts the model's vocabulary.
absl::StatusOr<std::vector<AddedToken>> ReadAddedTokens(
    const Json& list, const std::function<std::optional<int32_t>(const std::string&)>& id_of,
    int64_t model_tokens, Remarks* remarks);

// INVALID_ARGUMENT when tokens that are found by their normalized text cannot be told apart.
absl::Status CheckPatterns(const std::vector<AddedToken>& tokens,
                           const std::function<std::string(const std::string&)>& normalize);

// The tokens that are looked for in one kind of text.
class AddedTokens {
 public:
  // Takes those of `tokens` with this `normalized`; `pattern` is the text by which one is found.
  AddedTokens(const std::vector<AddedToken>& tokens, bool normalized,
              const std::function<std::string(const std::string&)>& pattern);

  // Cuts `text`: visits each token with its id, and what lies between them without one.
  using Visitor = std::function<void(std::string_view part, std::optional<int32_t> id)>;
  void Split(std::string_view text, const Visitor& visit) const;

 private:
  size_t MatchLength(std::string_view text, const AddedToken** token) const;

  std::vector<AddedToken> tokens_;
  ByteTrie trie_;  // values index tokens_
  std::array<bool, 256> begins_ = {};
};

}  // namespace terrace::tokenizer_json
