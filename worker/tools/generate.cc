// terrace-rank generate: continues a text with a trained checkpoint, one token at a time, by the
// forward pass of an "infer" program.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "worker/data/tokenizer.h"
#include "worker/rank/environment.h"
#include "worker/rank/program_file.h"
#include "worker/tools/checkpoint_vm.h"
#include "worker/tools/output.h"
#include "worker/tools/sampler.h"
#include "worker/tools/tools.h"
#include "worker/train/checkpoint_tokenizer.h"
#include "worker/vm/vm.h"

namespace terrace {
namespace {

struct GenerateOptions {
  std::string program, checkpoint, prompt;
  int64_t tokens = 200;
  SamplerOptions sampler;
  std::string output = "text";
};

// Feeds the last tokens of a text and keeps the logits that come back.
class PromptIo final : public SequenceIo {
 public:
  explicit PromptIo(const std::vector<int32_t>& ids) : ids_(ids) {}
  void LoadBatch(int, const BatchTarget&) override {}
  void LoadSchedule(std::span<float, 4>) override {}
  // What follows the text does not matter: attention is causal.
  void LoadPrompt(std::span<int32_t> tokens, std::span<int32_t> index) override {
    const size_t count = std::min(ids_.size(), tokens.size());
    std::fill(std::copy(ids_.end() - count, ids_.end(), tokens.begin()), tokens.end(), 0);
    index[0] = static_cast<int32_t>(count) - 1;
  }
  void Output(v1::OutputKind, std::span<const float> values) override { logits_ = values; }
  std::span<const float> logits() const { return logits_; }

 private:
  const std::vector<int32_t>& ids_;
  std::span<const float> logits_;  // until the next run
};

// How many bytes of `text` are whole UTF-8 characters: what can be shown already.
size_t WholeCharacters(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(text.size(), 4); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte < 0x80) return text.size();
    if (byte < 0xc0) continue;
    const size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
    return length > back ? text.size() - back : text.size();
  }
  return text.size();
}

class Generator {
 public:
  Generator(const GenerateOptions& options, Vm* vm, const Tokenizer& tokenizer)
      : options_(options), vm_(vm), tokenizer_(tokenizer), sampler_(options.sampler) {}

  absl::Status Run() {
    tokenizer_.Encode(options_.prompt, &ids_);
    if (ids_.empty())
      return absl::InvalidArgumentError("--prompt: got no tokens, must hold at least one");
    prompt_tokens_ = ids_.size();
    if (text_output()) Print(options_.prompt);
    PromptIo io(ids_);
    const std::vector<int32_t>& stops = tokenizer_.special_tokens().stops;
    for (int64_t i = 0; i < options_.tokens; ++i) {
      RETURN_IF_ERROR(vm_->Run("infer", &io));
      const int32_t id = sampler_.Next(io.logits());
      if (std::find(stops.begin(), stops.end(), id) != stops.end()) break;
      ids_.push_back(id);
      if (text_output()) PrintNew(/*all=*/false);
    }
    if (text_output()) {
      PrintNew(/*all=*/true);
      Print("\n");
    } else {
      Print(Json());
    }
    return absl::OkStatus();
  }

 private:
  bool text_output() const { return options_.output == "text"; }
  // What the new tokens add to the prompt: alone, the first of them would lose its space.
  std::string Made() const {
    const auto prompt_end = ids_.begin() + static_cast<int64_t>(prompt_tokens_);
    const std::string prompt = tokenizer_.Decode(std::vector<int32_t>(ids_.begin(), prompt_end));
    const std::string all = tokenizer_.Decode(ids_);
    return all.starts_with(prompt)
               ? all.substr(prompt.size())
               : tokenizer_.Decode(std::vector<int32_t>(prompt_end, ids_.end()));
  }
  // A character may be split over tokens: it is shown when it is whole.
  void PrintNew(bool all) {
    const std::string made = Made();
    const size_t end = all ? made.size() : WholeCharacters(made);
    if (end > printed_) Print(std::string_view(made).substr(printed_, end - printed_));
    printed_ = std::max(printed_, end);
  }
  static void Print(std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
  std::string Json() const {
    const nlohmann::json json = {{"prompt", options_.prompt},
                                 {"text", Made()},
                                 {"tokens", ids_.size() - prompt_tokens_},
                                 {"checkpoint", options_.checkpoint}};
    return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }

  const GenerateOptions& options_;
  Vm* const vm_;
  const Tokenizer& tokenizer_;
  Sampler sampler_;
  std::vector<int32_t> ids_;
  size_t prompt_tokens_ = 0;
  size_t printed_ = 0;
};

absl::Status Generate(const GenerateOptions& options) {
  ASSIGN_OR_RETURN(const auto tokenizer, TokenizerOfCheckpoint(options.checkpoint));
  ASSIGN_OR_RETURN(const auto ready,
                   CheckpointVm::Open(options.program, options.checkpoint, "infer"));
  return Generator(options, &ready->vm(), *tokenizer).Run();
}

int Run(const GenerateOptions& options, char** argv) {
  if (const auto program = ReadProgram(options.program, ""); program.ok()) {
    RestartWithEnvironment(argv, std::max<int>(1, (*program)->threads()), false);
  }
  const absl::Status status = Generate(options);
  if (status.ok()) return 0;
  return FailTool({.format = options.output == "json" ? ToolFormat::kJson : ToolFormat::kTable,
                   .out = std::cout,
                   .err = std::cerr},
                  status);
}

}  // namespace

void AddGenerateTool(CLI::App* app, char** argv, int* exit_code) {
  auto options = std::make_shared<GenerateOptions>();  // lives as long as the callback
  CLI::App* generate = app->add_subcommand("generate", "Continue a text with a trained checkpoint");
  generate->add_option("--program", options->program, "Program with the sequence \"infer\"")
      ->required();
  generate->add_option("--checkpoint", options->checkpoint, "Checkpoint folder")->required();
  generate->add_option("--prompt", options->prompt, "Text to continue")->required();
  generate->add_option("--tokens", options->tokens, "Tokens to add")
      ->check(CLI::Range(1, 1'000'000));
  generate->add_option("--temperature", options->sampler.temperature, "0 takes the likeliest token")
      ->check(CLI::Range(0.0, 100.0));
  generate->add_option("--top-k", options->sampler.top_k, "Sample among this many; 0: all")
      ->check(CLI::NonNegativeNumber);
  generate->add_option("--seed", options->sampler.seed, "Seed of the sampling");
  generate->add_option("-o", options->output, "text or json")
      ->check(CLI::IsMember({"text", "json"}));
  generate->callback([options, argv, exit_code] { *exit_code = Run(*options, argv); });
}

}  // namespace terrace
