// SPDX-License-Identifier: Apache-2.0
#include "worker/train/checkpoint_tokenizer.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "google/protobuf/util/json_util.h"
#include "proto/report/manifest_text.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/model_files.h"

namespace terrace {
namespace {

constexpr int64_t kConfigLimitBytes = 16 << 20;

}  // namespace

absl::StatusOr<v1::JobSpec> SpecOfCheckpoint(const std::string& checkpoint) {
  if (HoldsForeignWeights(checkpoint)) return SpecOfForeignWeights();
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(checkpoint));
  v1::JobSpec spec;
  google::protobuf::util::JsonParseOptions parse;
  parse.ignore_unknown_fields = true;
  if (!google::protobuf::util::JsonStringToMessage(manifest.spec_json, &spec, parse).ok()) {
    return absl::DataLossError(
        absl::StrCat(checkpoint, ": the job spec in manifest.json does not parse"));
  }
  return spec;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerOfCheckpoint(const std::string& checkpoint) {
  ASSIGN_OR_RETURN(const v1::JobSpec spec, SpecOfCheckpoint(checkpoint));
  const std::filesystem::path folder(checkpoint);
  const std::string& trained = spec.data().tokenizer();
  if (trained == "bytes") {
    const auto config = ReadTextFile((folder / "config.json").string(), kConfigLimitBytes);
    return Tokenizer::Load(trained, config.ok() ? *config : spec.model().config_json());
  }
  std::error_code error;
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    const std::filesystem::path copy = folder / name;
    if (std::filesystem::exists(copy, error)) return Tokenizer::Load(copy.string());
  }
  if (trained.empty()) {
    return absl::NotFoundError(absl::StrCat(
        checkpoint, " has no tokenizer.json and no tokenizer.model, and no job says which it is"));
  }
  return Tokenizer::Load(trained, spec.model().config_json());
}

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFor(const std::string& checkpoint,
                                                        const std::string& named) {
  auto tokenizer = named.empty() ? TokenizerOfCheckpoint(checkpoint) : Tokenizer::Load(named);
  if (tokenizer.ok()) return tokenizer;
  const absl::Status& status = tokenizer.status();
  return absl::Status(status.code(),
                      named.empty() ? absl::StrCat(status.message(), "; name one with --tokenizer")
                                    : absl::StrCat("--tokenizer: ", status.message()));
}

absl::StatusOr<ChatTemplate> TemplateOfCheckpoint(const std::string& checkpoint,
                                                  const v1::DataSpec& data, std::string tokenizer,
                                                  std::string file) {
  const std::filesystem::path folder(checkpoint);
  std::error_code error;
  const bool named = !tokenizer.empty();
  if (!named) tokenizer = data.tokenizer();
  const bool beside = !named && tokenizer != "bytes" &&
                      (std::filesystem::exists(folder / "tokenizer.json", error) ||
                       std::filesystem::exists(folder / "tokenizer.model", error));
  if (beside) tokenizer = checkpoint;
  if (file.empty() && !data.chat_template().empty()) {
    // The copy, so that the folder may be moved; earlier releases kept none.
    const std::filesystem::path copy = folder / kChatTemplateFile;
    file = std::filesystem::exists(copy, error) ? copy.string() : data.chat_template();
  }
  return ReadChatTemplate(tokenizer, file);
}

SpecialTokens SpecialTokensOfJob(const v1::JobSpec& spec, const TokenDataset& dataset) {
  if (dataset.special_tokens().has_value()) return *dataset.special_tokens();
  const auto tokenizer = Tokenizer::Load(spec.data().tokenizer(), spec.model().config_json());
  if (tokenizer.ok()) return (*tokenizer)->special_tokens();
  log::Warn("checkpoints name no end token: data.tokenizer: ", tokenizer.status().message());
  return {};
}

}  // namespace terrace
