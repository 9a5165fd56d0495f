// SPDX-License-Identifier: Apache-2.0
#include "worker/data/token_dataset.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "proto/tokens/sources.h"
#include "proto/tokens/token_file.h"
#include "worker/data/chat/chat_renderer.h"
#include "worker/data/document_dataset.h"
#include "worker/data/pairs/pair_dataset.h"
#include "worker/data/samples/window_dataset.h"
#include "worker/data/token_cache.h"
#include "worker/data/token_segment.h"
#include "worker/data/tokenizer.h"

namespace terrace {
namespace {

// Opens the files of one key of the spec; the tokenizer is loaded when the first text asks for it.
class SourceOpener {
 public:
  // `pairs`: of answers (train.preference).
  SourceOpener(const v1::DataSpec& spec, bool pairs, int64_t vocabulary,
               const DataProgress& progress, std::string_view model_config,
               TemplateProcess* templates)
      : spec_(spec),
        pairs_(pairs),
        vocabulary_(vocabulary),
        progress_(progress),
        model_config_(model_config),
        templates_(templates) {}

  // The tokenizer's.
  absl::StatusOr<std::optional<int32_t>> EndOfText() {
    RETURN_IF_ERROR(LoadTokenizer());
    return tokenizer_->end_of_text();
  }

  std::optional<SpecialTokens> special_tokens() const {
    if (tokenizer_ == nullptr) return std::nullopt;
    return tokenizer_->special_tokens();
  }

  absl::StatusOr<TokenSequence> OpenAll(
      std::string_view key, const google::protobuf::RepeatedPtrField<std::string>& paths) {
    TokenSequence sequence;
    for (const std::string& path : paths) {
      absl::StatusOr<TokenSegment> segment = OpenOne(path);
      if (!segment.ok()) {
        return absl::Status(segment.status().code(),
                            absl::StrCat(Absl(key), ": ", segment.status().message()));
      }
      sequence.Append(*std::move(segment));
    }
    return sequence;
  }

 private:
  absl::StatusOr<TokenSegment> OpenOne(const std::string& path) {
    ASSIGN_OR_RETURN(const DataFileKind kind, DataFileKindOf(path));
    if (pairs_ && kind != DataFileKind::kJsonLines) {
      return absl::InvalidArgumentError(absl::StrCat(
          path,
          " is no .jsonl file, and train.preference learns from lines with \"chosen\" and "
          "\"rejected\"; name such files, or leave train.preference out"));
    }
    if (pairs_) return OpenText(path, TextFormat::kPairLines);
    if (kind == DataFileKind::kText) return OpenText(path, TextFormat::kText);
    if (kind == DataFileKind::kJsonLines) return OpenText(path, TextFormat::kJsonLines);
    ASSIGN_OR_RETURN(TokenSegment segment, OpenTokenFile(path, vocabulary_));
    if (progress_) progress_(absl::StrCat("checking the token ids of ", segment.path), 0.0);
    RETURN_IF_ERROR(CheckIds(segment, vocabulary_));
    if (progress_) progress_(absl::StrCat("checking the token ids of ", segment.path), 1.0);
    return segment;
  }

  absl::Status LoadTokenizer() {
    if (tokenizer_ != nullptr) return absl::OkStatus();
    absl::StatusOr<std::unique_ptr<Tokenizer>> loaded =
        Tokenizer::Load(spec_.tokenizer(), model_config_);
    if (!loaded.ok()) {
      return absl::Status(loaded.status().code(),
                          absl::StrCat("data.tokenizer: ", loaded.status().message()));
    }
    tokenizer_ = *std::move(loaded);
    return absl::OkStatus();
  }

  absl::Status LoadTemplate() {
    if (chats_.has_value()) return absl::OkStatus();
    ASSIGN_OR_RETURN(ChatTemplate chat, ReadChatTemplate(spec_.tokenizer(), spec_.chat_template()));
    chats_.emplace(std::move(chat),
                   ChatOptions{.answers = spec_.loss_on() != "all",
                               .finds_special_tokens = tokenizer_->finds_special_tokens()},
                   templates_);
    return absl::OkStatus();
  }

  absl::StatusOr<TokenSegment> OpenText(const std::string& path, TextFormat format) {
    RETURN_IF_ERROR(LoadTokenizer());
    if (format != TextFormat::kText) RETURN_IF_ERROR(LoadTemplate());
    ASSIGN_OR_RETURN(CachedTokens cached,
                     OpenTokenCache({.source = path,
                                     .format = format,
                                     .tokenizer = tokenizer_.get(),
                                     .folder = spec_.cache(),
                                     .chats = chats_.has_value() ? &*chats_ : nullptr,
                                     .answers_alone = spec_.loss_on() != "all"},
                                    progress_));
    if (cached.max_id >= vocabulary_) RETURN_IF_ERROR(CheckIds(cached.segment, vocabulary_));
    return std::move(cached.segment);
  }

  const v1::DataSpec& spec_;
  const bool pairs_;
  const int64_t vocabulary_;
  const DataProgress& progress_;
  const std::string_view model_config_;
  TemplateProcess* const templates_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ChatRenderer> chats_;
};

bool HasPrompts(const TokenSequence& tokens) {
  return std::any_of(tokens.segments().begin(), tokens.segments().end(),
                     [](const TokenSegment& segment) { return !segment.uncounted.empty(); });
}

absl::Status CheckSpec(const v1::DataSpec& spec) {
  if (spec.train_size() == 0) {
    return absl::InvalidArgumentError("data.train is empty, must name at least one file");
  }
  if (spec.sequence_length() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.sequence_length is ", spec.sequence_length(), ", must be at least 1"));
  }
  if (!(spec.validation_fraction() >= 0 && spec.validation_fraction() < 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.validation_fraction is ", spec.validation_fraction(), ", must be in [0, 1)"));
  }
  return absl::OkStatus();
}

// `files`: those of the spec, one segment each.
std::vector<SourceTokens> TokensOf(const std::vector<DataSourceFiles>& files,
                                   const TokenSequence& tokens) {
  std::vector<SourceTokens> sources;
  int64_t begin = 0;
  for (const DataSourceFiles& source : files) {
    SourceTokens& of = sources.emplace_back(
        SourceTokens{.name = source.name, .weight = source.weight, .begin = begin});
    for (int i = source.begin; i < source.end; ++i) of.count += tokens.segments()[i].count;
    begin += of.count;
  }
  const double all =
      std::accumulate(sources.begin(), sources.end(), 0.0,
                      [](double sum, const SourceTokens& source) { return sum + source.weight; });
  for (SourceTokens& source : sources) source.weight /= all;
  return sources;
}

}  // namespace

std::vector<std::string> TellNotHeldOut(const std::vector<SourceView>& sources,
                                        double validation_fraction) {
  std::vector<std::string> told;
  const auto some = [](const SourceView& source) { return source.held_out > 0; };
  if (std::none_of(sources.begin(), sources.end(), some)) return told;
  for (const SourceView& source : sources) {
    if (source.held_out != 0) continue;
    told.push_back(absl::StrCat(
        "evaluations see nothing of ", source.name, ": none of its documents begins in the last ",
        100 * validation_fraction,
        " % of its tokens (data.validation_fraction); raise that, add documents, or name "
        "data.validation"));
  }
  return told;
}

absl::StatusOr<std::unique_ptr<TokenDataset>> TokenDataset::Open(
    const v1::DataSpec& spec, const v1::TrainSpec& train_spec, int64_t vocabulary,
    const DataProgress& progress, std::string_view model_config, TemplateProcess* templates) {
  RETURN_IF_ERROR(CheckSpec(spec));
  ASSIGN_OR_RETURN(const std::vector<DataSourceFiles> files, SourcesOf(spec));
  const bool pairs = train_spec.has_preference();
  SourceOpener opener(spec, pairs, vocabulary, progress, model_config, templates);
  ASSIGN_OR_RETURN(TokenSequence train, opener.OpenAll("data.train", spec.train()));
  ASSIGN_OR_RETURN(TokenSequence validation, opener.OpenAll("data.validation", spec.validation()));
  std::vector<SourceTokens> sources = TokensOf(files, train);
  TokenSums sums = {SumOf(train), SumOf(validation)};
  for (const SourceTokens& source : sources) {
    if (sources.size() > 1) sums.sources.push_back(source.count);
  }
  const bool windows = spec.samples() != "documents" && spec.samples() != "packed";
  if (windows && (HasPrompts(train) || HasPrompts(validation))) {
    log::Warn("the data has prompts with answers, and with data.samples: ", spec.samples(),
              " the loss counts both; data.samples: documents and packed count the answers alone");
  }
  std::unique_ptr<TokenDataset> dataset;
  if (!windows) {
    ASSIGN_OR_RETURN(const std::optional<int32_t> end_of_text, opener.EndOfText());
    ASSIGN_OR_RETURN(
        dataset, (pairs ? OpenPairs : OpenDocuments)({.spec = spec,
                                                      .train = std::move(train),
                                                      .sources = std::move(sources),
                                                      .validation = std::move(validation),
                                                      .end_of_text = end_of_text,
                                                      .seed = train_spec.seed(),
                                                      .global_batch = train_spec.global_batch()}));
  } else {
    ASSIGN_OR_RETURN(dataset, OpenWindows(spec, std::move(train), std::move(sources),
                                          std::move(validation), train_spec.seed()));
  }
  dataset->special_tokens_ = opener.special_tokens();
  dataset->sums_ = std::move(sums);
  return dataset;
}

}  // namespace terrace
