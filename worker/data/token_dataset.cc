// SPDX-License-Identifier: Apache-2.0
#include "worker/data/token_dataset.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "proto/tokens/token_file.h"
#include "proto/tokens/window_lengths.h"
#include "worker/data/chat/chat_renderer.h"
#include "worker/data/document_dataset.h"
#include "worker/data/permutation.h"
#include "worker/data/token_cache.h"
#include "worker/data/token_segment.h"
#include "worker/data/tokenizer.h"

namespace terrace {
namespace {

// Tokens [begin, begin + count) of a sequence.
struct TokenRange {
  const TokenSequence* tokens = nullptr;
  int64_t begin = 0;
  int64_t count = 0;

  // The range read as a ring, from any position.
  void ReadRing(int64_t position, std::span<int32_t> out) const {
    position %= count;
    const size_t first = std::min<size_t>(out.size(), count - position);
    tokens->Read(begin + position, out.first(first));
    if (first < out.size()) tokens->Read(begin, out.subspan(first));
  }
};

class WindowDataset final : public TokenDataset {
 public:
  WindowDataset(TokenSequence train, TokenSequence validation, const v1::DataSpec& spec,
                int64_t seed)
      : train_tokens_(std::move(train)),
        validation_tokens_(std::move(validation)),
        sequence_length_(spec.sequence_length()),
        key_(MixBits(static_cast<uint64_t>(seed))) {
    train_ = {&train_tokens_, 0, train_tokens_.size()};
    if (spec.validation_size() > 0) {
      validation_ = {&validation_tokens_, 0, validation_tokens_.size()};
    } else {
      const int64_t held_out = HeldOutTokens(spec, train_.count);
      train_.count -= held_out;
      validation_ = {&train_tokens_, train_.count, held_out};
    }
  }

  int64_t tokens(Split split) const override {
    return split == Split::kTrain ? train_.count : validation_.count;
  }

  int64_t TrainLength(int64_t, int64_t) const override { return sequence_length_; }

  int64_t TrainTokens(int64_t begin, int64_t end, int64_t global_batch) const override {
    return (end - begin) * global_batch * sequence_length_;
  }

  // An epoch cuts the ring of training tokens into windows, beginning at the epoch's offset, and
  // visits each once.
  void TrainRow(int64_t step, int64_t row, int64_t global_batch, std::span<int32_t> tokens,
                std::span<int32_t> targets) const override {
    const uint64_t windows = train_.count / sequence_length_;
    const uint64_t index = static_cast<uint64_t>(step) * global_batch + row;
    const uint64_t epoch_key = MixBits(key_ ^ MixBits(index / windows));
    const int64_t offset = epoch_key % sequence_length_;
    const int64_t window = Permutation(windows, epoch_key)(index % windows);
    const int64_t position = offset + window * sequence_length_;
    train_.ReadRing(position, tokens);
    train_.ReadRing(position + 1, targets);
  }

  void ValidationRow(int64_t index, std::span<int32_t> tokens,
                     std::span<int32_t> targets) const override {
    const int64_t windows = (validation_.count - 1) / sequence_length_;
    const int64_t position = validation_.begin + index % windows * sequence_length_;
    validation_.tokens->Read(position, tokens);
    validation_.tokens->Read(position + 1, targets);
  }

 private:
  const TokenSequence train_tokens_;
  const TokenSequence validation_tokens_;
  const int64_t sequence_length_;
  const uint64_t key_;
  TokenRange train_;
  TokenRange validation_;
};

// Opens the files of one key of the spec; the tokenizer is loaded when the first text asks for it.
class SourceOpener {
 public:
  SourceOpener(const v1::DataSpec& spec, int64_t vocabulary, const DataProgress& progress,
               std::string_view model_config, TemplateProcess* templates)
      : spec_(spec),
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
    if (format == TextFormat::kJsonLines) RETURN_IF_ERROR(LoadTemplate());
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

}  // namespace

absl::StatusOr<std::unique_ptr<TokenDataset>> TokenDataset::Open(
    const v1::DataSpec& spec, const v1::TrainSpec& train_spec, int64_t vocabulary,
    const DataProgress& progress, std::string_view model_config, TemplateProcess* templates) {
  RETURN_IF_ERROR(CheckSpec(spec));
  SourceOpener opener(spec, vocabulary, progress, model_config, templates);
  ASSIGN_OR_RETURN(TokenSequence train, opener.OpenAll("data.train", spec.train()));
  ASSIGN_OR_RETURN(TokenSequence validation, opener.OpenAll("data.validation", spec.validation()));
  const TokenSums sums = {SumOf(train), SumOf(validation)};
  if (spec.samples() != "documents" && (HasPrompts(train) || HasPrompts(validation))) {
    log::Warn("the data has prompts with answers, and with data.samples: ", spec.samples(),
              " the loss counts both; data.samples: documents counts the answers alone");
  }
  std::unique_ptr<TokenDataset> dataset;
  if (spec.samples() == "documents") {
    ASSIGN_OR_RETURN(const std::optional<int32_t> end_of_text, opener.EndOfText());
    ASSIGN_OR_RETURN(dataset, OpenDocuments({.spec = spec,
                                             .train = std::move(train),
                                             .validation = std::move(validation),
                                             .end_of_text = end_of_text,
                                             .seed = train_spec.seed(),
                                             .global_batch = train_spec.global_batch()}));
  } else {
    RETURN_IF_ERROR(CheckWindowLengths(spec, train.size(), validation.size()));
    dataset = std::make_unique<WindowDataset>(std::move(train), std::move(validation), spec,
                                              train_spec.seed());
  }
  dataset->special_tokens_ = opener.special_tokens();
  dataset->sums_ = sums;
  return dataset;
}

}  // namespace terrace
