// SPDX-License-Identifier: Apache-2.0
#include "worker/data/sentencepiece/tokenizer.h"

#include <xxhash.h>

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/data/byte_trie.h"
#include "worker/data/sentencepiece/decoder.h"
#include "worker/data/sentencepiece/model.h"
#include "worker/data/sentencepiece/normalizer.h"
#include "worker/data/sentencepiece/segment.h"

namespace terrace {
namespace {

using PieceType = SentencePieceModel::PieceType;

constexpr size_t kFileLimitBytes = 256 << 20;

class SentencePieceTokenizer final : public Tokenizer {
 public:
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(SentencePieceModel model,
                                                           std::string fingerprint,
                                                           const std::string& path,
                                                           std::string_view model_config) {
    std::unique_ptr<SentencePieceTokenizer> tokenizer(
        new SentencePieceTokenizer(std::move(model), std::move(fingerprint)));
    ASSIGN_OR_RETURN(
        SentencePieceNormalizer normalizer,
        SentencePieceNormalizer::Create(tokenizer->model_.normalizer,
                                        tokenizer->model_.space_as_suffix, &tokenizer->symbols_));
    ASSIGN_OR_RETURN(tokenizer->decoder_, SentencePieceDecoder::Create(&tokenizer->model_));
    tokenizer->normalizer_ = std::make_unique<SentencePieceNormalizer>(std::move(normalizer));
    std::vector<std::string> remarks;
    ASSIGN_OR_RETURN(tokenizer->special_,
                     ReadSpecialTokens(path, model_config, tokenizer->Names(), &remarks));
    for (const std::string& remark : remarks) log::Warn(path, ": ", remark);
    if (const std::optional<int32_t> end = tokenizer->end_of_text();
        end.has_value() && end != tokenizer->model_.end_of_sentence) {
      absl::StrAppend(&tokenizer->fingerprint_, "-", *end);
    }
    return tokenizer;
  }

  int64_t vocabulary() const override { return model_.pieces.size(); }
  const SpecialTokens& special_tokens() const override { return special_; }
  std::string fingerprint() const override { return fingerprint_; }
  bool finds_special_tokens() const override { return false; }

  void Encode(std::string_view text, std::vector<int32_t>* ids) const override {
    bool after_unknown = false;
    segmenter_.Segment(normalizer_->Normalize(text), [&](std::string_view piece, int32_t id) {
      const bool is_unknown = id == model_.unknown;
      if (is_unknown && model_.byte_fallback) {
        for (const unsigned char byte : piece) ids->push_back(byte_ids_[byte]);
      } else if (!is_unknown || !after_unknown) {  // a run of unknown pieces is one
        ids->push_back(id);
      }
      after_unknown = is_unknown;
    });
  }

  std::string Decode(const std::vector<int32_t>& ids) const override {
    return decoder_->Decode(ids);
  }

 private:
  SentencePieceTokenizer(SentencePieceModel model, std::string fingerprint)
      : model_(std::move(model)),
        fingerprint_(std::move(fingerprint)),
        symbols_(UserDefined(model_)),
        byte_ids_(ByteIds(model_)),
        segmenter_(&model_, &symbols_) {}

  TokenNames Names() const {
    TokenNames names;
    names.id_of = [this](const std::string& text) -> std::optional<int32_t> {
      for (size_t id = 0; id < model_.pieces.size(); ++id) {
        if (model_.pieces[id].text == text) return static_cast<int32_t>(id);
      }
      return std::nullopt;
    };
    names.special_text = [this](int64_t id) -> std::optional<std::string> {
      if (id < 0 || id >= vocabulary()) return std::nullopt;
      const SentencePieceModel::Piece& piece = model_.pieces[id];
      const bool special =
          piece.type == PieceType::kControl || piece.type == PieceType::kUserDefined;
      return special ? std::optional(piece.text) : std::nullopt;
    };
    if (const std::optional<int32_t> end = model_.end_of_sentence) {
      names.own.end = SpecialToken{*end, model_.pieces[*end].text};
    }
    return names;
  }

  static ByteTrie UserDefined(const SentencePieceModel& model) {
    ByteTrie symbols;
    for (size_t id = 0; id < model.pieces.size(); ++id) {
      if (model.pieces[id].type == PieceType::kUserDefined) symbols.Add(model.pieces[id].text, id);
    }
    return symbols;
  }

  static std::array<int32_t, 256> ByteIds(const SentencePieceModel& model) {
    std::array<int32_t, 256> byte_ids;
    byte_ids.fill(model.unknown);
    for (size_t id = 0; id < model.pieces.size(); ++id) {
      if (const std::optional<uint8_t> byte = ByteOf(model.pieces[id])) byte_ids[*byte] = id;
    }
    return byte_ids;
  }

  const SentencePieceModel model_;
  std::string fingerprint_;
  const ByteTrie symbols_;
  const std::array<int32_t, 256> byte_ids_;
  const SentencePieceSegmenter segmenter_;
  std::optional<SentencePieceDecoder> decoder_;
  std::unique_ptr<SentencePieceNormalizer> normalizer_;
  SpecialTokens special_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadSentencePieceTokenizer(
    const std::string& path, std::string_view model_config) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  if (file.text().size() > kFileLimitBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " has ", file.text().size(), " bytes, more than the limit of ", kFileLimitBytes));
  }
  absl::StatusOr<SentencePieceModel> model = ParseSentencePieceModel(file.text());
  std::string fingerprint =
      absl::StrFormat("sentencepiece-2-%016x", XXH3_64bits(file.text().data(), file.text().size()));
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      model.ok() ? SentencePieceTokenizer::Create(*std::move(model), std::move(fingerprint), path,
                                                  model_config)
                 : model.status();
  if (tokenizer.ok()) return tokenizer;
  return absl::InvalidArgumentError(absl::StrCat(
      path, " is not a SentencePiece model that can be used: ", tokenizer.status().message()));
}

}  // namespace terrace
