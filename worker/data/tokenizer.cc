// SPDX-License-Identifier: Apache-2.0
#include "worker/data/tokenizer.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "worker/data/sentencepiece/tokenizer.h"
#include "worker/data/tokenizer_json/tokenizer_json.h"

namespace terrace {
namespace {

class BytesTokenizer final : public Tokenizer {
 public:
  // Bytes have no end token of their own; generation stops where the model's config says.
  explicit BytesTokenizer(std::string_view model_config) {
    for (const int64_t id : EndIdsOf(model_config)) {
      special_.stops.push_back(static_cast<int32_t>(id));
    }
  }
  int64_t vocabulary() const override { return 256; }
  const SpecialTokens& special_tokens() const override { return special_; }
  void Encode(std::string_view text, std::vector<int32_t>* ids) const override {
    for (const unsigned char c : text) ids->push_back(c);
  }
  bool EncodeWithEnds(std::string_view text, std::vector<int32_t>* ids,
                      std::vector<size_t>* ends) const override {
    Encode(text, ids);
    for (size_t i = 1; i <= text.size(); ++i) ends->push_back(i);
    return true;
  }
  std::string Decode(const std::vector<int32_t>& ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (id >= 0 && id < 256) text.push_back(static_cast<char>(id));
    }
    return text;
  }
  std::string fingerprint() const override { return "bytes"; }

 private:
  SpecialTokens special_;
};

}  // namespace

bool Tokenizer::EncodeWithEnds(std::string_view text, std::vector<int32_t>* ids,
                               std::vector<size_t>*) const {
  Encode(text, ids);
  return false;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(std::string_view name_or_path,
                                                           std::string_view model_config) {
  if (name_or_path == "bytes") return std::make_unique<BytesTokenizer>(model_config);
  std::string path(name_or_path);
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    const std::filesystem::path folder(path);
    // A link that leads nowhere is one that should be there.
    const auto has = [&](const char* name) {
      return std::filesystem::exists(std::filesystem::symlink_status(folder / name, ignored));
    };
    const bool has_json = has("tokenizer.json");
    if (!has_json && !has("tokenizer.model")) {
      return absl::NotFoundError(absl::StrCat(
          "the folder ", path, " holds neither a tokenizer.json nor a tokenizer.model"));
    }
    path = (folder / (has_json ? "tokenizer.json" : "tokenizer.model")).string();
  }
  if (absl::EndsWith(path, ".json")) return LoadTokenizerJson(path, model_config);
  if (absl::EndsWith(path, ".model")) return LoadSentencePieceTokenizer(path, model_config);
  return absl::InvalidArgumentError(
      absl::StrCat("tokenizer is \"", path,
                   "\", must be \"bytes\", a tokenizer.json, a *.model or a folder with one"));
}

}  // namespace terrace
