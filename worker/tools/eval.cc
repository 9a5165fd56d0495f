// terrace-rank eval: the loss of a trained checkpoint on texts, by an "eval" program.
//
// What is read and what counts is the job's own (data.samples, data.loss_on): of a stream windows
// that follow each other without a gap, so that each token of a file but the first is predicted
// once; of documents, packed or not, each document alone, in pieces where it is longer than a row,
// and of prompts and conversations the answers.
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
#include "worker/checkpoint/checkpoint.h"
#include "worker/data/chat/chat_renderer.h"
#include "worker/data/document_samples.h"
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
  std::string chat_template;  // empty: the job's
  std::string tokenizer;      // empty: the checkpoint's
  std::string output = "table";
};

// What the job says of its data.
struct EvalMode {
  bool documents = false;      // each alone; else windows of a stream
  bool answers_alone = false;  // count
};

struct EvalResult {
  std::string file;
  int64_t tokens = 0;
  int64_t counted = 0;  // tokens that were predicted
  double loss_sum = 0;  // nats

  double loss() const { return counted > 0 ? loss_sum / static_cast<double>(counted) : 0; }
};

// A file, and the rows that it is read in.
struct EvalText {
  std::string file;
  TokenSequence tokens;
  std::vector<DocumentSample> rows;
};

// Hands out the rows of a file, a batch at a time.
class EvalRowsIo final : public SequenceIo {
 public:
  EvalRowsIo(const v1::StepRules& rules, const EvalMode& mode, const EvalText& text)
      : batch_rows_(rules.micro_batch()),
        length_(rules.sequence_length()),
        mode_(mode),
        text_(text) {}

  int64_t batches() const {
    return (static_cast<int64_t>(text_.rows.size()) + batch_rows_ - 1) / batch_rows_;
  }
  void SetBatch(int64_t batch) { batch_ = batch; }
  double loss_sum() const { return loss_sum_; }
  int64_t counted() const { return static_cast<int64_t>(counted_); }

  void LoadBatch(int, const BatchTarget& batch) override {
    constexpr int32_t kUncounted = -1;
    std::fill(batch.tokens.begin(), batch.tokens.end(), 0);
    std::fill(batch.targets.begin(), batch.targets.end(), kUncounted);
    const auto rows = static_cast<int64_t>(text_.rows.size());
    for (int64_t i = 0; i < batch_rows_ && batch_ * batch_rows_ + i < rows; ++i) {
      const DocumentSample& row = text_.rows[batch_ * batch_rows_ + i];
      text_.tokens.Read(row.begin, batch.tokens.subspan(i * length_, row.count));
      const auto targets = batch.targets.subspan(i * length_, row.count);
      if (mode_.answers_alone) {
        text_.tokens.ReadCounted(row.begin + 1, kUncounted, targets);
      } else {
        text_.tokens.Read(row.begin + 1, targets);
      }
    }
  }
  void LoadSchedule(std::span<float, 4>) override {}
  void Output(v1::OutputKind kind, std::span<const float> values) override {
    if (kind != v1::LOSS_TOTAL) return;
    loss_sum_ += values[0];
    counted_ += values[1];
  }

 private:
  const int64_t batch_rows_, length_;
  const EvalMode mode_;
  const EvalText& text_;
  int64_t batch_ = 0;
  double loss_sum_ = 0, counted_ = 0;
};

// Opens the files that a checkpoint is evaluated on, as its job opened its own.
class EvalTexts {
 public:
  EvalTexts(const EvalOptions& options, const v1::DataSpec& data, const v1::StepRules& rules)
      : options_(options),
        data_(data),
        vocabulary_(rules.vocabulary()),
        length_(rules.sequence_length()),
        mode_{.documents = data.samples() == "documents" || data.samples() == "packed",
              .answers_alone = data.samples() != "stream" && data.loss_on() != "all"} {}

  const EvalMode& mode() const { return mode_; }

  absl::StatusOr<EvalText> Open(const std::string& path, ProgressBar* bar) {
    ASSIGN_OR_RETURN(TokenSegment segment, Tokens(path, bar));
    RETURN_IF_ERROR(CheckIds(segment, vocabulary_));
    EvalText text = {.file = path, .tokens = {}, .rows = {}};
    if (mode_.documents && segment.document_end == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": does not say where its documents end, which a job with data.samples ",
          data_.samples(), " asks for; try the text itself"));
    }
    DocumentSamples rows({length_});
    const auto any = [](int64_t, int64_t) { return true; };
    int64_t begin = 0;
    for (int64_t i = 0; mode_.documents && i < segment.documents; ++i) {
      const int64_t end = segment.document_end(i);
      rows.Add(begin, end - begin, any);
      begin = end;
    }
    if (!mode_.documents) rows.Add(0, segment.count, any);
    for (int64_t i = 0; i < rows.size(); ++i) text.rows.push_back(rows.At(0, i));
    const int64_t tokens = segment.count;
    text.tokens.Append(std::move(segment));
    if (!text.rows.empty()) return text;
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", tokens, tokens == 1 ? " token" : " tokens",
                     ", must have at least two: one that is predicted from one before it"));
  }

 private:
  absl::StatusOr<TokenSegment> Tokens(const std::string& path, ProgressBar* bar) {
    ASSIGN_OR_RETURN(const DataFileKind kind, DataFileKindOf(path));
    if (kind == DataFileKind::kTokens) return OpenTokenFile(path, vocabulary_);
    const bool lines = kind == DataFileKind::kJsonLines;
    RETURN_IF_ERROR(ReadTokenizer(path));
    if (lines) RETURN_IF_ERROR(ReadTemplate());
    ASSIGN_OR_RETURN(
        CachedTokens cached,
        OpenTokenCache({.source = path,
                        .format = lines ? TextFormat::kJsonLines : TextFormat::kText,
                        .tokenizer = tokenizer_.get(),
                        .folder = options_.cache,
                        .chats = chats_.has_value() ? &*chats_ : nullptr,
                        .answers_alone = data_.loss_on() != "all"},
                       [&](std::string_view text, double part) { bar->Draw(text, part); }));
    // What is mapped stays; nobody will look for it here again.
    std::error_code ignored;
    std::filesystem::remove_all(options_.cache, ignored);
    return std::move(cached.segment);
  }

  absl::Status ReadTokenizer(const std::string& path) {
    if (tokenizer_ != nullptr) return absl::OkStatus();
    const bool named = std::any_of(data_.train().begin(), data_.train().end(), [](const auto& of) {
      const auto kind = DataFileKindOf(of);
      return kind.ok() && *kind != DataFileKind::kTokens;
    });
    if (!named && data_.tokenizer() == "bytes" && options_.tokenizer.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          path,
          ": a text needs a tokenizer, and the checkpoint's job read token files and named "
          "none; name one with --tokenizer, or give token files (.bin)"));
    }
    ASSIGN_OR_RETURN(tokenizer_, TokenizerFor(options_.checkpoint, options_.tokenizer));
    return absl::OkStatus();
  }

  absl::Status ReadTemplate() {
    if (chats_.has_value()) return absl::OkStatus();
    ASSIGN_OR_RETURN(ChatTemplate chat,
                     TemplateOfCheckpoint(options_.checkpoint, data_, options_.tokenizer,
                                          options_.chat_template));
    chats_.emplace(std::move(chat),
                   ChatOptions{.answers = data_.loss_on() != "all",
                               .finds_special_tokens = tokenizer_->finds_special_tokens()},
                   nullptr);
    return absl::OkStatus();
  }

  const EvalOptions& options_;
  const v1::DataSpec& data_;
  const int64_t vocabulary_, length_;
  const EvalMode mode_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ChatRenderer> chats_;
};

absl::StatusOr<EvalResult> EvalOn(const EvalText& text, const EvalMode& mode, CheckpointVm* ready,
                                  ProgressBar* bar) {
  EvalRowsIo io(ready->program().rules(), mode, text);
  const int64_t batches = io.batches();
  for (int64_t batch = 0; batch < batches; ++batch) {
    bar->Draw(absl::StrCat("evaluating on ", text.file),
              static_cast<double>(batch) / static_cast<double>(batches));
    io.SetBatch(batch);
    RETURN_IF_ERROR(ready->vm().Run("eval", &io));
  }
  bar->Draw(absl::StrCat("evaluating on ", text.file), 1);
  return EvalResult{.file = text.file,
                    .tokens = text.tokens.size(),
                    .counted = io.counted(),
                    .loss_sum = io.loss_sum()};
}

struct EvalAnswer {
  int64_t length = 0;
  EvalMode mode;
  std::vector<EvalResult> results;
};

// Also where no file asks for it: a name that is wrong is never ignored.
absl::Status CheckThere(const char* option, const std::string& path) {
  std::error_code error;
  if (path.empty() || std::filesystem::exists(path, error)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(option, ": got ", path, ", which is not there"));
}

absl::StatusOr<EvalAnswer> EvalAll(const EvalOptions& options, ProgressBar* bar) {
  // The weights are compared later, since a text that is not there should be told at once.
  RETURN_IF_ERROR(VerifyWeights(options.checkpoint, CheckpointFiles::kBeside));
  RETURN_IF_ERROR(CheckThere("--tokenizer", options.tokenizer == "bytes" ? "" : options.tokenizer));
  RETURN_IF_ERROR(CheckThere("--chat-template", options.chat_template));
  ASSIGN_OR_RETURN(const v1::JobSpec spec, SpecOfCheckpoint(options.checkpoint));
  ASSIGN_OR_RETURN(const auto program, ReadProgram(options.program, ""));
  EvalTexts opener(options, spec.data(), program->rules());
  std::vector<EvalText> texts;  // all of them, before anything is computed
  for (const std::string& path : options.data) {
    ASSIGN_OR_RETURN(EvalText text, opener.Open(path, bar));
    texts.push_back(std::move(text));
  }
  ASSIGN_OR_RETURN(const auto ready,
                   CheckpointVm::Open(options.program, options.checkpoint, "eval"));
  EvalAnswer answer = {
      .length = program->rules().sequence_length(), .mode = opener.mode(), .results = {}};
  EvalResult all = {.file = "all"};
  for (const EvalText& text : texts) {
    ASSIGN_OR_RETURN(const EvalResult result, EvalOn(text, opener.mode(), ready.get(), bar));
    answer.results.push_back(result);
    all.tokens += result.tokens;
    all.counted += result.counted;
    all.loss_sum += result.loss_sum;
  }
  if (all.counted == 0) {
    return absl::InvalidArgumentError(absl::StrCat("--data: the loss counts none of ", all.tokens,
                                                   " tokens, must have an answer to predict"));
  }
  if (answer.results.size() > 1) answer.results.push_back(all);
  return answer;
}

std::string_view ReadAs(const EvalMode& mode) { return mode.documents ? "documents" : "stream"; }
std::string_view CountedOf(const EvalMode& mode) { return mode.answers_alone ? "answers" : "all"; }

std::string AnswerText(const EvalAnswer& answer) {
  using enum TextTable::Align;
  TextTable table({{kLeft, 60}, {kRight}, {kRight}, {kRight}, {kRight}});
  table.Add({"data", "tokens", "predicted", "nats a token", "perplexity"});
  for (const EvalResult& result : answer.results) {
    const bool any = result.counted > 0;
    table.Add({result.file, Grouped(result.tokens), Grouped(result.counted),
               any ? absl::StrFormat("%.4f", result.loss()) : "-",
               any ? absl::StrFormat("%.2f", std::exp(result.loss())) : "-"});
  }
  std::string text;
  table.AppendTo(&text);
  absl::StrAppend(&text, "rows of ", Grouped(answer.length), " tokens, ",
                  answer.mode.documents ? "each document alone" : "one stream a file",
                  answer.mode.answers_alone ? "; answers alone count\n" : "\n");
  return text;
}

std::string AnswerJson(const EvalOptions& options, const EvalAnswer& answer) {
  nlohmann::json json = {{"checkpoint", options.checkpoint},
                         {"sequence_length", answer.length},
                         {"samples", ReadAs(answer.mode)},
                         {"loss_on", CountedOf(answer.mode)},
                         {"results", nlohmann::json::array()}};
  for (const EvalResult& result : answer.results) {
    nlohmann::json line = {{"data", result.file},
                           {"tokens", result.tokens},
                           {"predicted", result.counted},
                           {"loss", nullptr},
                           {"perplexity", nullptr}};
    if (result.counted > 0) {
      line["loss"] = result.loss();
      line["perplexity"] = std::exp(result.loss());
    }
    json["results"].push_back(std::move(line));
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
  absl::StatusOr<EvalAnswer> answer;
  {
    ProgressBar bar(output);
    answer = EvalAll(options, &bar);
  }
  if (!answer.ok()) return FailTool(output, answer.status());
  output.out << (json ? AnswerJson(options, *answer) : AnswerText(*answer));
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
  eval->add_option("--chat-template", options->chat_template, "Template of conversations");
  eval->add_option("--tokenizer", options->tokenizer, "bytes, tokenizer.json or *.model");
  eval->add_option("-o", options->output, "table or json")->check(CLI::IsMember({"table", "json"}));
  eval->callback([options, argv, exit_code] { *exit_code = RunEvalTool(*options, argv); });
}

}  // namespace terrace
