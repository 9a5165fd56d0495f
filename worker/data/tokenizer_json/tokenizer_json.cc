// SPDX-License-Identifier: Apache-2.0
#include "worker/data/tokenizer_json/tokenizer_json.h"

#include <xxhash.h>

#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "worker/data/tokenizer_json/added_tokens.h"
#include "worker/data/tokenizer_json/document.h"
#include "worker/data/tokenizer_json/own_tokens.h"
#include "worker/data/tokenizer_json/pipeline.h"

namespace terrace {
namespace tokenizer_json {
namespace {

constexpr int64_t kFileLimitBytes = 256 << 20;
constexpr int kMaxDepth = 32;  // reading nested steps recurses
// Changes when the ids of the same document do: token caches are named after it.
constexpr int kRules = 3;

absl::StatusOr<std::unique_ptr<Model>> ReadModel(const Json& json, bool byte_level,
                                                 Remarks* remarks) {
  if (!json.is_object()) return absl::InvalidArgumentError("it has no \"model\"");
  const std::string type = TypeOf(json);
  // Older documents leave the type out; then the members tell.
  const bool like_bpe = Member(json, "vocab").is_object() && Member(json, "merges").is_array();
  if (type == "BPE" || (!json.contains("type") && like_bpe)) {
    return ReadBpeModel(json, byte_level, remarks);
  }
  const bool like_unigram = Member(json, "vocab").is_array() && json.contains("unk_id");
  const bool is_unigram = type == "Unigram" || (!json.contains("type") && like_unigram);
  if (is_unigram && !byte_level) return ReadUnigramModel(json, remarks);
  if (is_unigram) return Unsupported("pre_tokenizer", "ByteLevel", "another one with Unigram");
  return Unsupported("model.type", type, "BPE or Unigram");
}

// Parts of the document that no id hangs on as Terrace uses it.
void RemarkUnused(const Json& file, Remarks* remarks) {
  RemarkUnknownKeys(file, "",
                    {"version", "truncation", "padding", "added_tokens", "normalizer",
                     "pre_tokenizer", "post_processor", "decoder", "model"},
                    remarks);
  for (const char* key : {"truncation", "padding"}) {
    if (Member(file, key).is_null()) continue;
    remarks->push_back(absl::StrCat(
        key, " is set and changes nothing: documents are cut and padded by data.sequence_length"));
  }
}

absl::StatusOr<Pipeline> ReadDocument(const Json& file, Remarks* remarks) {
  if (!file.is_object()) return absl::InvalidArgumentError("it is not a JSON object");
  ASSIGN_OR_RETURN(const std::optional<std::string> version, StringMember(file, "version", ""));
  if (version.value_or("1.0") != "1.0") return Unsupported("version", *version, "1.0");
  RemarkUnused(file, remarks);
  Pipeline pipeline;
  ASSIGN_OR_RETURN(pipeline.normalizer, Normalizer::Read(Member(file, "normalizer"), remarks));
  ASSIGN_OR_RETURN(pipeline.pre_tokenizer,
                   PreTokenizer::Read(Member(file, "pre_tokenizer"), remarks));
  ASSIGN_OR_RETURN(pipeline.model,
                   ReadModel(Member(file, "model"), pipeline.pre_tokenizer.byte_level(), remarks));
  const auto id_of = [&](const std::string& token) { return pipeline.model->IdOfToken(token); };
  ASSIGN_OR_RETURN(pipeline.added, ReadAddedTokens(Member(file, "added_tokens"), id_of,
                                                   pipeline.model->token_count(), remarks));
  RETURN_IF_ERROR(CheckPatterns(pipeline.added, [&](const std::string& content) {
    return pipeline.normalizer.Applied(content);
  }));
  ASSIGN_OR_RETURN(pipeline.decoder, Decoder::Read(Member(file, "decoder"),
                                                   pipeline.pre_tokenizer.byte_level(), remarks));
  return pipeline;
}

absl::StatusOr<Json> Parse(const std::string& text) {
  try {
    return Json::parse(text, [](int depth, Json::parse_event_t, Json&) {
      if (depth > kMaxDepth) throw std::invalid_argument("it is nested too deeply");
      return true;
    });
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
}

}  // namespace
}  // namespace tokenizer_json

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizerJson(const std::string& path,
                                                             std::string_view model_config) {
  using namespace tokenizer_json;  // NOLINT(google-build-using-namespace)
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kFileLimitBytes));
  const absl::StatusOr<Json> file = Parse(text);
  if (!file.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not valid JSON: ", file.status().message()));
  }
  Remarks remarks;
  absl::StatusOr<Pipeline> pipeline = ReadDocument(*file, &remarks);
  if (!pipeline.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not a tokenizer that can be used: ", pipeline.status().message()));
  }
  ASSIGN_OR_RETURN(
      SpecialTokens special,
      ReadSpecialTokens(path, model_config, NamesOf(*pipeline, *file, &remarks), &remarks));
  if (!special.end.has_value()) TakeOnlySpecialToken(*pipeline, &special, &remarks);
  for (const std::string& remark : remarks) log::Warn(path, ": ", remark);
  std::string fingerprint =
      absl::StrFormat("tokenizer.json-%d-%016x-%d", kRules, XXH3_64bits(text.data(), text.size()),
                      special.end.has_value() ? special.end->id : -1);
  return MakeTokenizer(*std::move(pipeline), std::move(special), std::move(fingerprint));
}

}  // namespace terrace
