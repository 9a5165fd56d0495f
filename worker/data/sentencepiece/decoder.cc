// SPDX-License-Identifier: Apache-2.0
#include "worker/data/sentencepiece/decoder.h"

#include <cstdio>
#include <string_view>

#include "base/status_macros.h"
#include "base/utf8.h"
#include "worker/data/byte_trie.h"

namespace terrace {
namespace {

using PieceType = SentencePieceModel::PieceType;

constexpr std::string_view kReplacement = "\ufffd";

// Characters that are whole as they are, every other byte as one replacement.
void AppendCharacters(std::string_view bytes, std::string* text) {
  while (!bytes.empty()) {
    const size_t length = Utf8Length(bytes);
    text->append(length == 0 ? kReplacement : bytes.substr(0, length));
    bytes.remove_prefix(length == 0 ? 1 : length);
  }
}

void AppendWithSpaces(std::string_view piece, std::string* text) {
  while (!piece.empty()) {
    const bool is_space = piece.starts_with(kSpaceSymbol);
    text->push_back(is_space ? ' ' : piece.front());
    piece.remove_prefix(is_space ? kSpaceSymbol.size() : 1);
  }
}

}  // namespace

std::optional<uint8_t> ByteOf(const SentencePieceModel::Piece& piece) {
  unsigned byte = 0;
  if (piece.type != PieceType::kByte || std::sscanf(piece.text.c_str(), "<0x%2X>", &byte) != 1) {
    return std::nullopt;
  }
  return static_cast<uint8_t>(byte);
}

absl::StatusOr<SentencePieceDecoder> SentencePieceDecoder::Create(const SentencePieceModel* model) {
  static const ByteTrie* const kNoSymbols = new ByteTrie();
  SentencePieceDecoder decoder(model);
  if (model->denormalizer.character_map.empty()) return decoder;
  ASSIGN_OR_RETURN(
      decoder.denormalizer_,
      SentencePieceNormalizer::Create(model->denormalizer, model->space_as_suffix, kNoSymbols));
  return decoder;
}

std::string SentencePieceDecoder::Decode(const std::vector<int32_t>& ids) const {
  const bool drops = model_->normalizer.add_dummy_prefix || model_->normalizer.remove_extra_spaces;
  std::string text, bytes;
  bool dropped = false;  // the one space that encoding put in front
  const auto end_bytes = [&] {
    AppendCharacters(bytes, &text);
    bytes.clear();
  };
  for (const int32_t id : ids) {
    if (id < 0 || id >= static_cast<int32_t>(model_->pieces.size())) continue;
    const SentencePieceModel::Piece& piece = model_->pieces[id];
    if (const std::optional<uint8_t> byte = ByteOf(piece)) {
      bytes.push_back(static_cast<char>(*byte));
      continue;
    }
    end_bytes();
    if (piece.type == PieceType::kControl) continue;
    if (piece.type == PieceType::kUnknown) {
      text.append(model_->unknown_surface);
      continue;
    }
    std::string_view rest = piece.text;
    if (drops && text.empty() && !dropped && rest.starts_with(kSpaceSymbol)) {
      rest.remove_prefix(kSpaceSymbol.size());
      dropped = !model_->normalizer.remove_extra_spaces;  // which drops all of them
    }
    AppendWithSpaces(rest, &text);
  }
  end_bytes();
  return denormalizer_.has_value() ? denormalizer_->Normalize(text) : text;
}

}  // namespace terrace
