// SPDX-License-Identifier: Apache-2.0
#include "worker/data/sentencepiece_tokenizer.h"

#include <xxhash.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "worker/data/sentencepiece_model.h"

namespace terrace {
namespace {

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::unique_ptr<SentencePieceModel> model, std::string fingerprint)
      : model_(std::move(model)), fingerprint_(std::move(fingerprint)) {}

  int64_t vocabulary() const override { return model_->pieces(); }
  std::optional<int32_t> end_of_text() const override {
    const int32_t id = model_->end_of_sentence();
    return id < 0 ? std::nullopt : std::optional(id);
  }
  void Encode(std::string_view text, std::vector<int32_t>* ids) const override { model_->Encode(text, ids); }
  std::string Decode(const std::vector<int32_t>& ids) const override { return model_->Decode(ids); }
  std::string fingerprint() const override { return fingerprint_; }

 private:
  const std::unique_ptr<SentencePieceModel> model_;
  const std::string fingerprint_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadSentencePieceTokenizer(const std::string& path) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  auto model = std::make_unique<SentencePieceModel>();
  std::string error = "no pieces";
  if (!model->Parse(file.text(), &error)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a SentencePiece model: ", error));
  }
  std::string fingerprint =
      absl::StrFormat("sentencepiece-%016x", XXH3_64bits(file.text().data(), file.text().size()));
  return std::make_unique<SentencePieceTokenizer>(std::move(model), std::move(fingerprint));
}

}  // namespace terrace
