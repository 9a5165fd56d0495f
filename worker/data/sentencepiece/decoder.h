// What a SentencePiece model decodes ids to, as its library does: bytes of characters that are not
// whole as U+FFFD, unknown pieces as the model's own surface, no space where the one in front of a
// text was put there by encoding, and the text as the model's denormalizer makes it.
//
// Thread-safe after construction.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/sentencepiece/model.h"
#include "worker/data/sentencepiece/normalizer.h"

namespace terrace {

// The byte that the piece stands for, "<0x41>".
std::optional<uint8_t> ByteOf(const SentencePieceModel::Piece& piece);

class SentencePieceDecoder {
 public:
  // `model` is borrowed. INVALID_ARGUMENT when the denormalizer's character map is damaged.
  static absl::StatusOr<SentencePieceDecoder> Create(const SentencePieceModel* model);

  // Ids that the model does not have are left out.
  std::string Decode(const std::vector<int32_t>& ids) const;

 private:
  explicit SentencePieceDecoder(const SentencePieceModel* model) : model_(model) {}

  const SentencePieceModel* model_;
  std::optional<SentencePieceNormalizer> denormalizer_;
};

}  // namespace terrace
