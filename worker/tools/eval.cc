// terrace-rank eval: the loss of a trained checkpoint on texts, by an "eval" program.
//
// A file's tokens are one sequence, documents one after the other with the tokenizer's end token
// between them, as data.samples: stream has them. Windows of it follow each other without a gap, so
// that each token but the first is predicted once, the first of a window from the last of the one
// before alone. Of conversations and of prompts with completions the answers count.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/text/number_format.h"
#include "base/text/text_table.h"
#include "nlohmann/json.hpp"
#include "proto/tokens/token_file.h"
#include "worker/data/chat/chat_renderer.h"
#include "worker/data/token_cache.h"
#include "worker/data/token_segment.h"
#include "worker/rank/environment.h"
#include "worker/rank/program_file.h"
#include "worker/tools/checkpoint_vm.h"
#include "worker/tools/output.h"
#include "worker/tools/tools.h"
#include "worker/train/checkpoint_tokenizer.h"

namespace terrace {
namespace {

struct EvalOptions {
  std::string program, checkpoint, cache;
  std::vector<std::string> data;
  std::string output = "table";
};

struct EvalResult {
  std::string file;
  int64_t tokens = 0;
  int64_t counted = 0;  // tokens that were predicted
  double loss_sum = 0;  // nats

  double loss() const { return counted > 0 ? loss_sum / static_cast<double>(counted) : 0; }
};

// Hands out the windows of a file, a batch at a time.
class WindowIo final : public SequenceIo {
 public:
  WindowIo(const v1::StepRules& rules, const TokenSegment& segment)
      : rows_(rules.micro_batch()), length_(rules.sequence_length()), segment_(segment) {}

  int64_t windows() const { return (segment_.count - 1 + length_ - 1) / length_; }
  int64_t batches() const { return (windows() + rows_ - 1) / rows_; }
  void SetBatch(int64_t batch) { batch_ = batch; }
  double loss_sum() const { return loss_sum_; }
  int64_t counted() const { return static_cast<int64_t>(counted_); }

  void LoadBatch(int, const BatchTarget& batch) override {
    constexpr int32_t kUncounted = -1;
    std::fill(batch.tokens.begin(), batch.tokens.end(), 0);
    std::fill(batch.targets.begin(), batch.targets.end(), kUncounted);
    for (int64_t row = 0; row < rows_; ++row) {
      const int64_t begin = (batch_ * rows_ + row) * length_;
      const int64_t count = std::min(length_, segment_.count - 1 - begin);
      if (count <= 0) break;
      segment_.Read(begin, batch.tokens.subspan(row * length_, count));
      const auto targets = batch.targets.subspan(row * length_, count);
      segment_.Read(begin + 1, targets);
      segment_.Mask(begin + 1, kUncounted, targets);
    }
  }
  void LoadSchedule(std::span<float, 4>) override {}
  void LoadPrompt(std::span<int32_t>, std::span<int32_t>) override {}
  void Output(v1::OutputKind kind, std::span<const float> values) override {
    if (kind != v1::LOSS_TOTAL) return;
    loss_sum_ += values[0];
    counted_ += values[1];
  }

 private:
  const int64_t rows_, length_;
  const TokenSegment& segment_;
  int64_t batch_ = 0;
  double loss_sum_ = 0, counted_ = 0;
};

// Opens the files that the checkpoint is evaluated on.
class EvalTexts {
 public:
  EvalTexts(const EvalOptions& options, const Tokenizer& tokenizer, int64_t vocabulary)
      : options_(options), tokenizer_(tokenizer), vocabulary_(vocabulary) {}

  absl::StatusOr<TokenSegment> Open(const std::string& path, ProgressBar* bar) {
    ASSIGN_OR_RETURN(const DataFileKind kind, DataFileKindOf(path));
    TokenSegment segment;
    if (kind == DataFileKind::kTokens) {
      ASSIGN_OR_RETURN(segment, OpenTokenFile(path, vocabulary_));
    } else {
      const bool lines = kind == DataFileKind::kJsonLines;
      if (lines) RETURN_IF_ERROR(ReadTemplate());
      ASSIGN_OR_RETURN(
          CachedTokens cached,
          OpenTokenCache({.source = path,
                          .format = lines ? TextFormat::kJsonLines : TextFormat::kText,
                          .tokenizer = &tokenizer_,
                          .folder = options_.cache,
                          .chats = chats_.has_value() ? &*chats_ : nullptr},
                         [&](std::string_view text, double part) { bar->Draw(text, part); }));
      segment = std::move(cached.segment);
    }
    RETURN_IF_ERROR(CheckIds(segment, vocabulary_));
    if (segment.count >= 2) return segment;
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", segment.count, segment.count == 1 ? " token" : " tokens",
                     ", must have at least two: one that is predicted from one before it"));
  }

 private:
  absl::Status ReadTemplate() {
    if (chats_.has_value()) return absl::OkStatus();
    const std::string tokenizer =
        (std::filesystem::path(options_.checkpoint) / "tokenizer.json").string();
    std::error_code error;
    if (!std::filesystem::exists(tokenizer, error)) return absl::OkStatus();
    ASSIGN_OR_RETURN(ChatTemplate chat, ReadChatTemplate(tokenizer, ""));
    chats_.emplace(
        std::move(chat),
        ChatOptions{.answers = true, .finds_special_tokens = tokenizer_.finds_special_tokens()},
        nullptr);
    return absl::OkStatus();
  }

  const EvalOptions& options_;
  const Tokenizer& tokenizer_;
  const int64_t vocabulary_;
  std::optional<ChatRenderer> chats_;
};

absl::StatusOr<EvalResult> EvalFile(const std::string& path, EvalTexts* texts, CheckpointVm* ready,
                                    ProgressBar* bar) {
  ASSIGN_OR_RETURN(const TokenSegment segment, texts->Open(path, bar));
  WindowIo io(ready->program().rules(), segment);
  const int64_t batches = io.batches();
  for (int64_t batch = 0; batch < batches; ++batch) {
    bar->Draw(absl::StrCat("evaluating on ", path),
              static_cast<double>(batch) / static_cast<double>(batches));
    io.SetBatch(batch);
    RETURN_IF_ERROR(ready->vm().Run("eval", &io));
  }
  bar->Draw(absl::StrCat("evaluating on ", path), 1);
  const EvalResult result = {
      .file = path, .tokens = segment.count, .counted = io.counted(), .loss_sum = io.loss_sum()};
  if (result.counted > 0) return result;
  return absl::InvalidArgumentError(absl::StrCat(path, ": the loss counts none of its ",
                                                 result.tokens,
                                                 " tokens, must have an answer to predict"));
}

absl::StatusOr<std::vector<EvalResult>> EvalAll(const EvalOptions& options, int64_t* length,
                                                ProgressBar* bar) {
  ASSIGN_OR_RETURN(const auto tokenizer, TokenizerOfCheckpoint(options.checkpoint));
  ASSIGN_OR_RETURN(const auto ready,
                   CheckpointVm::Open(options.program, options.checkpoint, "eval"));
  const v1::StepRules& rules = ready->program().rules();
  *length = rules.sequence_length();
  EvalTexts texts(options, *tokenizer, rules.vocabulary());
  std::vector<EvalResult> results;
  EvalResult all = {.file = "all"};
  for (const std::string& path : options.data) {
    ASSIGN_OR_RETURN(const EvalResult result, EvalFile(path, &texts, ready.get(), bar));
    results.push_back(result);
    all.tokens += result.tokens;
    all.counted += result.counted;
    all.loss_sum += result.loss_sum;
  }
  if (results.size() > 1) results.push_back(all);
  return results;
}

std::string ResultText(const std::vector<EvalResult>& results) {
  using enum TextTable::Align;
  TextTable table({{kLeft, 60}, {kRight}, {kRight}, {kRight}, {kRight}});
  table.Add({"data", "tokens", "predicted", "nats a token", "perplexity"});
  for (const EvalResult& result : results) {
    table.Add({result.file, Grouped(result.tokens), Grouped(result.counted),
               absl::StrFormat("%.4f", result.loss()),
               absl::StrFormat("%.2f", std::exp(result.loss()))});
  }
  std::string text;
  table.AppendTo(&text);
  return text;
}

std::string ResultJson(const EvalOptions& options, int64_t length,
                       const std::vector<EvalResult>& results) {
  nlohmann::json json = {{"checkpoint", options.checkpoint},
                         {"sequence_length", length},
                         {"results", nlohmann::json::array()}};
  for (const EvalResult& result : results) {
    json["results"].push_back({{"data", result.file},
                               {"tokens", result.tokens},
                               {"predicted", result.counted},
                               {"loss", result.loss()},
                               {"perplexity", std::exp(result.loss())}});
  }
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

int RunEvalTool(const EvalOptions& options, char** argv) {
  if (const auto program = ReadProgram(options.program, ""); program.ok()) {
    RestartWithEnvironment(argv, std::max<int>(1, (*program)->threads()), false);
  }
  const bool json = options.output == "json";
  const ToolOutput output = {.format = json ? ToolFormat::kJson : ToolFormat::kTable,
                             .out = std::cout,
                             .err = std::cerr,
                             .err_is_terminal = isatty(STDERR_FILENO) != 0};
  int64_t length = 0;
  absl::StatusOr<std::vector<EvalResult>> results;
  {
    ProgressBar bar(output);
    results = EvalAll(options, &length, &bar);
  }
  if (!results.ok()) return FailTool(output, results.status());
  output.out << (json ? ResultJson(options, length, *results) : ResultText(*results));
  return 0;
}

}  // namespace

void AddEvalTool(CLI::App* app, char** argv, int* exit_code) {
  auto options = std::make_shared<EvalOptions>();  // lives as long as the callback
  CLI::App* eval = app->add_subcommand("eval", "The loss of a trained checkpoint on texts");
  eval->add_option("--program", options->program, "Program with the sequence \"eval\"")->required();
  eval->add_option("--checkpoint", options->checkpoint, "Checkpoint folder")->required();
  eval->add_option("--data", options->data, "Texts or token files")->required();
  eval->add_option("--cache", options->cache, "Folder for the tokens of texts")->required();
  eval->add_option("-o", options->output, "table or json")->check(CLI::IsMember({"table", "json"}));
  eval->callback([options, argv, exit_code] { *exit_code = RunEvalTool(*options, argv); });
}

}  // namespace terrace
