// terrace-rank generate: continues texts with a trained checkpoint, by the sequences "prefill" and
// "decode" of its program.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text/terminal_text.h"
#include "nlohmann/json.hpp"
#include "worker/data/chat/chat_renderer.h"
#include "worker/data/tokenizer.h"
#include "worker/rank/environment.h"
#include "worker/rank/program_file.h"
#include "worker/tools/checkpoint_vm.h"
#include "worker/tools/continuation.h"
#include "worker/tools/growing_texts.h"
#include "worker/tools/output.h"
#include "worker/tools/tools.h"
#include "worker/train/checkpoint_tokenizer.h"
#include "worker/vm/vm.h"

namespace terrace {
namespace {

struct GenerateOptions {
  std::string program, checkpoint;
  std::vector<std::string> prompts;
  bool chat = false;                     // prompts are what a user says
  std::string system;                    // said before that; with `chat`
  std::string chat_template, tokenizer;  // "": the checkpoint's
  int64_t samples = 1;                   // continuations of each prompt
  ContinuationOptions each;
  std::string output = "text";
};

// A model may write anything. On a terminal that is text and moves no cursor; into a file or a pipe
// it goes as it is.
void Print(std::string_view text) {
  static const bool is_terminal = isatty(STDOUT_FILENO) != 0;
  static TerminalText terminal_text;  // it comes piece by piece
  const std::string shown = is_terminal ? terminal_text.Next(text) : std::string(text);
  std::fwrite(shown.data(), 1, shown.size(), stdout);
  std::fflush(stdout);
}

// The text of each prompt up to where the answer begins.
absl::StatusOr<std::vector<std::string>> RenderedPrompts(const GenerateOptions& options,
                                                         const Tokenizer& tokenizer) {
  if (!options.chat) return options.prompts;
  ASSIGN_OR_RETURN(const v1::JobSpec spec, SpecOfCheckpoint(options.checkpoint));
  ASSIGN_OR_RETURN(ChatTemplate chat,
                   TemplateOfCheckpoint(options.checkpoint, spec.data(), options.tokenizer,
                                        options.chat_template));
  if (chat.texts.empty()) {
    return absl::InvalidArgumentError(
        "--chat: the checkpoint has no chat template; name one with --chat-template");
  }
  ChatRenderer renderer(std::move(chat),
                        {.finds_special_tokens = tokenizer.finds_special_tokens(), .asks = true},
                        nullptr);
  std::vector<std::string> texts;
  for (const std::string& prompt : options.prompts) {
    nlohmann::json messages = nlohmann::json::array();
    if (!options.system.empty())
      messages.push_back({{"role", "system"}, {"content", options.system}});
    messages.push_back({{"role", "user"}, {"content", prompt}});
    const nlohmann::json line = {{"messages", std::move(messages)}};
    ASSIGN_OR_RETURN(LineText text, renderer.Render(line.dump(
                                        -1, ' ', true, nlohmann::json::error_handler_t::replace)));
    texts.push_back(std::move(text.text));
  }
  return texts;
}

// How long the passes took, by their kind.
struct PassTimes {
  double prompt_seconds = 0, new_seconds = 0;
};

class Generator {
 public:
  // `prompts`: as the model sees them.
  Generator(const GenerateOptions& options, const std::vector<std::string>& prompts,
            const v1::Program& program, GrowingTexts* texts, const Tokenizer& tokenizer)
      : options_(options), program_(program), texts_(*texts) {
    for (const std::string& prompt : prompts) {
      std::vector<int32_t> ids;
      tokenizer.Encode(prompt, &ids);
      for (int64_t i = 0; i < options.samples; ++i) {
        continuations_.emplace_back(options.each, tokenizer, ids,
                                    static_cast<int64_t>(continuations_.size()));
      }
    }
  }

  absl::Status Run() {
    RETURN_IF_ERROR(Begin());
    const bool streams = text_output() && continuations_.size() == 1;
    if (streams && !options_.chat) Print(PromptOf(0));
    while (AnyLeft()) {
      for (int64_t i = 0; i < texts_.count(); ++i) {
        Continuation& one = continuations_[i];
        if (one.done()) continue;
        one.Add(texts_.logits(i));
        if (streams) Print(one.Shown());
        if (one.done()) continue;
        texts_.Append(i, std::span(one.ids()).last(1), options_.each.tokens - one.new_tokens());
      }
      RETURN_IF_ERROR(Pass(&times_.new_seconds));
    }
    if (streams) {
      Print("\n");
    } else {
      Print(text_output() ? Table() : Json());
    }
    return absl::OkStatus();
  }

 private:
  bool text_output() const { return options_.output == "text"; }
  bool AnyLeft() const {
    return std::any_of(continuations_.begin(), continuations_.end(),
                       [](const Continuation& one) { return !one.done(); });
  }

  absl::Status Begin() {
    if (texts_.count() != static_cast<int64_t>(continuations_.size())) {
      return absl::InvalidArgumentError(absl::StrCat("--program: got one for ", texts_.count(),
                                                     " texts, must be for ", continuations_.size(),
                                                     ": --prompt times --samples"));
    }
    for (int64_t i = 0; i < texts_.count(); ++i) {
      const Continuation& one = continuations_[i];
      if (one.ids().empty())
        return absl::InvalidArgumentError("--prompt: got no tokens, must hold at least one");
      if (const absl::Status known = CheckIds(one.ids(), program_.rules().vocabulary());
          !known.ok())
        return absl::InvalidArgumentError(absl::StrCat("--prompt: ", known.message()));
      texts_.Append(i, one.ids(), options_.each.tokens);
      if (texts_.seen(i) == one.prompt_tokens()) continue;
      std::cerr << "terrace: of the " << one.prompt_tokens() << " tokens of prompt "
                << i / options_.samples + 1 << " the last " << texts_.seen(i)
                << " are seen; --context sees more\n";
    }
    return Pass(&times_.prompt_seconds);
  }

  absl::Status Pass(double* seconds) {
    const auto begin = std::chrono::steady_clock::now();
    RETURN_IF_ERROR(texts_.Run());
    *seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return absl::OkStatus();
  }

  // Each prompt with its continuation, under a line that counts them.
  std::string Table() const {
    std::string text;
    for (size_t i = 0; i < continuations_.size(); ++i) {
      const Continuation& one = continuations_[i];
      absl::StrAppend(&text, i == 0 ? "" : "\n", "==> ", i + 1, " of ", continuations_.size(),
                      " <==\n", PromptOf(i), options_.chat ? "\n" : "", one.text(), "\n");
    }
    return text;
  }

  const std::string& PromptOf(size_t continuation) const {
    return options_.prompts[continuation / options_.samples];
  }
  nlohmann::json JsonOf(size_t i) const {
    const Continuation& one = continuations_[i];
    return {{"prompt", PromptOf(i)},
            {"text", one.text()},
            {"prompt_tokens", one.prompt_tokens()},
            {"tokens", one.new_tokens()},
            {"finish_reason", one.finish()}};
  }
  std::string Json() const {
    nlohmann::json json;
    if (continuations_.size() == 1) {
      json = JsonOf(0);
    } else {
      for (size_t i = 0; i < continuations_.size(); ++i) json["texts"].push_back(JsonOf(i));
    }
    int64_t cache_bytes = 0;
    for (const v1::Buffer& buffer : program_.buffers())
      cache_bytes += buffer.class_() == v1::KEY_VALUE_CACHE ? buffer.bytes() : 0;
    json["checkpoint"] = options_.checkpoint;
    json["context"] = texts_.max_length();
    json["key_value_cache_bytes"] = cache_bytes;
    json["arena_bytes"] = program_.arenas(0).bytes();
    json["prompt_seconds"] = times_.prompt_seconds;
    json["seconds"] = times_.new_seconds;
    return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }

  const GenerateOptions& options_;
  const v1::Program& program_;
  GrowingTexts& texts_;
  std::vector<Continuation> continuations_;
  PassTimes times_;
};

absl::Status Generate(const GenerateOptions& options) {
  for (const std::string& stop : options.each.stops) {
    if (stop.empty())
      return absl::InvalidArgumentError("--stop: got an empty text, must hold at least a byte");
  }
  ASSIGN_OR_RETURN(const auto tokenizer, TokenizerFor(options.checkpoint, options.tokenizer));
  ASSIGN_OR_RETURN(const std::vector<std::string> prompts, RenderedPrompts(options, *tokenizer));
  ASSIGN_OR_RETURN(const auto ready,
                   CheckpointVm::Open(options.program, options.checkpoint, "decode"));
  ASSIGN_OR_RETURN(GrowingTexts texts, GrowingTexts::Create(ready->program(), &ready->vm()));
  return Generator(options, prompts, ready->program(), &texts, *tokenizer).Run();
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
  CLI::App* generate = app->add_subcommand("generate", "Continue texts with a trained checkpoint");
  generate->add_option("--program", options->program, "Program that generates")->required();
  generate->add_option("--checkpoint", options->checkpoint, "Checkpoint folder")->required();
  generate->add_option("--prompt", options->prompts, "Text to continue; several in one pass")
      ->required()
      ->allow_extra_args(false);
  generate->add_flag("--chat", options->chat, "Prompts are what a user says");
  generate->add_option("--system", options->system, "Said before them");
  generate->add_option("--chat-template", options->chat_template, "Template (.jinja)");
  generate->add_option("--tokenizer", options->tokenizer, "bytes, tokenizer.json or *.model");
  generate->add_option("--samples", options->samples, "Continuations of each prompt")
      ->check(CLI::Range(1, 4096));
  generate->add_option("--tokens", options->each.tokens, "Tokens to add")
      ->check(CLI::Range(1, 1'000'000));
  generate->add_option("--stop", options->each.stops, "Text that ends a continuation")
      ->allow_extra_args(false);
  generate
      ->add_option("--temperature", options->each.sampler.temperature,
                   "0 takes the likeliest token")
      ->check(CLI::Range(0.0, 100.0));
  generate->add_option("--top-k", options->each.sampler.top_k, "Sample among this many; 0: all")
      ->check(CLI::NonNegativeNumber);
  generate
      ->add_option("--top-p", options->each.sampler.top_p,
                   "Sample among the likeliest that reach it")
      ->check(CLI::Range(0.0, 1.0));
  generate
      ->add_option("--min-p", options->each.sampler.min_p,
                   "Sample above this part of the likeliest")
      ->check(CLI::Range(0.0, 1.0));
  generate
      ->add_option("--repetition-penalty", options->each.sampler.repetition_penalty,
                   "Tokens that the text has lose by it")
      ->check(CLI::Range(0.01, 100.0));
  generate
      ->add_option("--presence-penalty", options->each.sampler.presence_penalty,
                   "What was added loses this once")
      ->check(CLI::Range(-2.0, 2.0));
  generate
      ->add_option("--frequency-penalty", options->each.sampler.frequency_penalty,
                   "... and this each time")
      ->check(CLI::Range(-2.0, 2.0));
  generate->add_option("--seed", options->each.sampler.seed, "Seed of the sampling");
  generate->add_option("-o", options->output, "text or json")
      ->check(CLI::IsMember({"text", "json"}));
  generate->callback([options, argv, exit_code] { *exit_code = Run(*options, argv); });
}

}  // namespace terrace
