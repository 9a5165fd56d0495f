// What a SentencePiece *.model file says: the fields of its ModelProto message that encoding and
// decoding use.
//
// Debian's library brings a protobuf runtime of another version than ours and exports it, so the
// two cannot live in one process; the format is small and stable, and is read here.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace {

struct SentencePieceModel {
  enum class Type { kUnigram = 1, kBpe = 2 };
  enum class PieceType {
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,
    kUserDefined = 4,
    kUnused = 5,
    kByte = 6
  };
  struct Piece {
    std::string text;
    float score = 0;
    PieceType type = PieceType::kNormal;
  };
  struct Normalizer {
    bool add_dummy_prefix = true;
    bool remove_extra_spaces = true;
    bool escape_spaces = true;
    std::string character_map;  // precompiled_charsmap; empty: characters stay as they are
  };

  Type type = Type::kUnigram;
  std::vector<Piece> pieces;  // by id
  int32_t unknown = 0;
  std::optional<int32_t> end_of_sentence;
  bool byte_fallback = false;
  std::string unknown_surface = " \u2047 ";  // what the unknown piece decodes to
  bool space_as_suffix = false;
  Normalizer normalizer;
  Normalizer denormalizer;  // of decoded text; without a character map: none
};

// INVALID_ARGUMENT says what is wrong or not supported.
absl::StatusOr<SentencePieceModel> ParseSentencePieceModel(std::string_view serialized);

}  // namespace terrace
