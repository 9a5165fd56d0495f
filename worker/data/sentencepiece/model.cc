// SPDX-License-Identifier: Apache-2.0
#include "worker/data/sentencepiece/model.h"

#include <bit>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace terrace {
namespace {

using Model = SentencePieceModel;

// One field of a protobuf message: `number` for varint and fixed32, `bytes` for strings and
// messages.
struct Field {
  uint32_t id = 0;
  uint64_t number = 0;
  std::string_view bytes;
  bool as_bool() const { return number != 0; }
  // Negative numbers are written as 64-bit varints.
  int32_t as_int() const { return static_cast<int32_t>(number); }
};

class FieldReader {
 public:
  explicit FieldReader(std::string_view message) : rest_(message) {}

  // False at the end and on damage.
  bool Next(Field* field) {
    if (rest_.empty() || !ok_) return false;
    const uint64_t tag = Varint();
    field->id = static_cast<uint32_t>(tag >> 3);
    switch (tag & 7) {
      case 0:
        field->number = Varint();
        break;
      case 1:
        field->number = Fixed(8);
        break;
      case 2:
        field->bytes = Take(Varint());
        break;
      case 5:
        field->number = Fixed(4);
        break;
      default:
        ok_ = false;
    }
    return ok_;
  }
  bool ok() const { return ok_; }

 private:
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const unsigned char byte = rest_.front();
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    ok_ = false;
    return 0;
  }
  uint64_t Fixed(int bytes) {
    const std::string_view raw = Take(bytes);
    uint64_t value = 0;
    for (size_t i = 0; i < raw.size(); ++i) {
      value |= uint64_t{static_cast<unsigned char>(raw[i])} << (8 * i);
    }
    return value;
  }
  std::string_view Take(uint64_t bytes) {
    if (bytes > rest_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }

  std::string_view rest_;
  bool ok_ = true;
};

bool ParsePiece(std::string_view message, Model::Piece* piece) {
  FieldReader reader(message);
  for (Field field; reader.Next(&field);) {
    if (field.id == 1) piece->text = std::string(field.bytes);
    if (field.id == 2) piece->score = std::bit_cast<float>(static_cast<uint32_t>(field.number));
    if (field.id == 3) piece->type = static_cast<Model::PieceType>(field.number);
  }
  return reader.ok() && piece->type >= Model::PieceType::kNormal &&
         piece->type <= Model::PieceType::kByte;
}

bool ParseTrainerSpec(std::string_view message, int32_t* type, int32_t* end_of_sentence,
                      Model* model) {
  FieldReader reader(message);
  for (Field field; reader.Next(&field);) {
    if (field.id == 3) *type = field.as_int();
    if (field.id == 24) model->space_as_suffix = field.as_bool();
    if (field.id == 35) model->byte_fallback = field.as_bool();
    if (field.id == 42) *end_of_sentence = field.as_int();
    if (field.id == 44) model->unknown_surface = std::string(field.bytes);
  }
  return reader.ok();
}

bool ParseNormalizerSpec(std::string_view message, Model::Normalizer* normalizer) {
  FieldReader reader(message);
  for (Field field; reader.Next(&field);) {
    if (field.id == 2) normalizer->character_map = std::string(field.bytes);
    if (field.id == 3) normalizer->add_dummy_prefix = field.as_bool();
    if (field.id == 4) normalizer->remove_extra_spaces = field.as_bool();
    if (field.id == 5) normalizer->escape_spaces = field.as_bool();
  }
  return reader.ok();
}

absl::Status CheckPieces(Model* model) {
  using enum Model::PieceType;
  std::set<std::string_view> seen;
  std::optional<int32_t> unknown;
  for (size_t id = 0; id < model->pieces.size(); ++id) {
    const Model::Piece& piece = model->pieces[id];
    if (piece.text.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("piece ", id, " is empty"));
    }
    if (!seen.insert(piece.text).second) {
      return absl::InvalidArgumentError(absl::StrCat("the piece ", piece.text, " appears twice"));
    }
    if (piece.type != kUnknown) continue;
    if (unknown.has_value()) {
      return absl::InvalidArgumentError("two pieces are of the type UNKNOWN");
    }
    unknown = id;
  }
  if (!unknown.has_value()) return absl::InvalidArgumentError("no piece is of the type UNKNOWN");
  model->unknown = *unknown;
  for (int byte = 0; model->byte_fallback && byte < 256; ++byte) {
    const std::string name = absl::StrFormat("<0x%02X>", byte);
    if (!seen.contains(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("byte_fallback is on, but ", name, " is missing"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SentencePieceModel> ParseSentencePieceModel(std::string_view serialized) {
  Model model;
  int32_t type = static_cast<int32_t>(Model::Type::kUnigram);
  int32_t end_of_sentence = 2;
  bool ok = true;
  FieldReader reader(serialized);
  for (Field field; ok && reader.Next(&field);) {
    if (field.id == 1) ok = ParsePiece(field.bytes, &model.pieces.emplace_back());
    if (field.id == 2) ok = ParseTrainerSpec(field.bytes, &type, &end_of_sentence, &model);
    if (field.id == 3) ok = ParseNormalizerSpec(field.bytes, &model.normalizer);
    if (field.id == 5) ok = ParseNormalizerSpec(field.bytes, &model.denormalizer);
  }
  if (!ok || !reader.ok() || model.pieces.empty()) {
    return absl::InvalidArgumentError("it does not parse; was it cut off?");
  }
  if (type != static_cast<int32_t>(Model::Type::kUnigram) &&
      type != static_cast<int32_t>(Model::Type::kBpe)) {
    return absl::InvalidArgumentError(
        absl::StrCat("its model_type is ", type, ", must be 1 (unigram) or 2 (bpe)"));
  }
  model.type = static_cast<Model::Type>(type);
  RETURN_IF_ERROR(CheckPieces(&model));
  if (end_of_sentence >= 0 && end_of_sentence < static_cast<int32_t>(model.pieces.size()) &&
      model.pieces[end_of_sentence].type == Model::PieceType::kControl) {
    model.end_of_sentence = end_of_sentence;
  }
  return model;
}

}  // namespace terrace
