// SentencePiece's text normalisation: the model's character map (a trie of replacements),
// collapsing of spaces, the dummy space in front, and spaces as U+2581. User-defined symbols pass
// unchanged.
//
// Thread-safe after construction.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/byte_trie.h"
#include "worker/data/character_map.h"
#include "worker/data/sentencepiece/model.h"

namespace terrace {

inline constexpr std::string_view kSpaceSymbol = "\u2581";

class SentencePieceNormalizer {
 public:
  // `symbols`, borrowed: the user-defined ones. INVALID_ARGUMENT when the character map is damaged.
  static absl::StatusOr<SentencePieceNormalizer> Create(const SentencePieceModel::Normalizer& rules,
                                                        bool space_as_suffix,
                                                        const ByteTrie* symbols);

  std::string Normalize(std::string_view text) const;

 private:
  struct Prefix {
    std::string_view normalized;
    size_t consumed;
  };
  SentencePieceNormalizer() = default;
  Prefix NormalizePrefix(std::string_view text) const;
  void AppendSpace(std::string* out) const;

  const ByteTrie* symbols_ = nullptr;
  CharacterMap map_;
  bool space_as_suffix_ = false;
  bool add_dummy_prefix_ = true;
  bool remove_extra_spaces_ = true;
  bool escape_spaces_ = true;
};

}  // namespace terrace
