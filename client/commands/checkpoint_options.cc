// SPDX-License-Identifier: Apache-2.0
#include "client/commands/checkpoint_options.h"

namespace terrace {
namespace {

// CLI::Range takes what is no number for one in any range.
CLI::Validator Within(double least, double most) {
  CLI::Validator within;
  within.name("WITHIN");
  within.description(CLI::detail::to_string(least) + " to " + CLI::detail::to_string(most));
  within.operation([least, most](std::string& text) -> std::string {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && value >= least && value <= most) return "";
    return "got " + text + ", must be a number from " + CLI::detail::to_string(least) + " to " +
           CLI::detail::to_string(most);
  });
  return within;
}

// Returns the one of the template.
CLI::Option* AddTextOptions(CLI::App* command, TextOptions* options) {
  command->add_option("--tokenizer", options->tokenizer,
                      "bytes, tokenizer.json or *.model; without it the checkpoint's");
  return command->add_option("--chat-template", options->chat_template,
                             "Template of conversations (.jinja); without it the checkpoint's");
}

}  // namespace

void AddGenerateOptions(CLI::App* generate, GenerateOptions* options) {
  generate->add_option("checkpoint", options->checkpoint, "Checkpoint folder")->required();
  generate->add_option("--prompt", options->prompts, "Text to continue; may be given again")
      ->required()
      ->allow_extra_args(false);
  CLI::Option* chat = generate->add_flag(
      "--chat", options->chat, "Prompts are what a user says: answer them by the chat template");
  generate->add_option("--system", options->system, "What the system says before")->needs(chat);
  AddTextOptions(generate, &options->text)->needs(chat);
  generate->add_option("--samples", options->samples, "Continuations of each prompt")
      ->capture_default_str()
      ->check(CLI::Range(1, 4096));
  generate->add_option("--tokens", options->tokens, "Tokens to add")
      ->capture_default_str()
      ->check(CLI::Range(1, 1'000'000));
  generate
      ->add_option("--context", options->context,
                   "Tokens of a text that are seen at a time; 0: as it was trained")
      ->capture_default_str()
      ->check(CLI::Range(0, 1'000'000'000));
  generate
      ->add_option("--stop", options->stops, "Text that ends a continuation; may be given again")
      ->allow_extra_args(false);
  generate->add_option("--temperature", options->temperature, "0 takes the likeliest token")
      ->capture_default_str()
      ->check(Within(0, 100));
  generate->add_option("--top-k", options->top_k, "Sample among this many; 0: all")
      ->capture_default_str()
      ->check(CLI::Range(0, 1'000'000'000));
  generate
      ->add_option("--top-p", options->top_p,
                   "Sample among the likeliest that together have this probability")
      ->capture_default_str()
      ->check(Within(0, 1));
  generate
      ->add_option("--min-p", options->min_p,
                   "Sample what has at least this part of the likeliest one's probability")
      ->capture_default_str()
      ->check(Within(0, 1));
  generate
      ->add_option("--repetition-penalty", options->repetition_penalty,
                   "What the text has already gets less likely by this factor")
      ->capture_default_str()
      ->check(Within(0.01, 100));
  generate
      ->add_option("--presence-penalty", options->presence_penalty,
                   "What was added already gets less likely by this, once")
      ->capture_default_str()
      ->check(Within(-2, 2));
  generate
      ->add_option("--frequency-penalty", options->frequency_penalty,
                   "... and by this for each time that it was added")
      ->capture_default_str()
      ->check(Within(-2, 2));
  generate->add_option("--seed", options->seed, "Seed of the sampling")->capture_default_str();
}

void AddServeOptions(CLI::App* serve, ServeOptions* options) {
  serve->add_option("checkpoint", options->checkpoint, "Checkpoint folder")->required();
  serve->add_option("--listen", options->listen, "host:port; port 0 takes a free one")
      ->capture_default_str();
  serve
      ->add_option("--context", options->context,
                   "Tokens of a prompt and its completion; 0: as it was trained")
      ->capture_default_str()
      ->check(CLI::Range(0, 1'000'000'000));
  serve->add_option("--texts", options->texts, "Texts that are completed side by side")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  AddTextOptions(serve, &options->text);
  serve->add_flag("--insecure", options->insecure, "Plain HTTP where other machines reach it");
  serve->add_option("--tls-cert", options->tls_cert, "Certificate of the server, PEM");
  serve->add_option("--tls-key", options->tls_key, "Its key, PEM");
  serve->add_option("--tls-ca", options->tls_ca, "Authority of the clients' certificates, PEM");
}

void AddEvalOptions(CLI::App* eval, EvalOptions* options) {
  eval->add_option("checkpoint", options->checkpoint,
                   "Checkpoint folder, or one that transformers wrote")
      ->required();
  eval->add_option("--data", options->data, "Texts (.txt, .jsonl, compressed too) or token files")
      ->required();
  eval->add_option("--length", options->length,
                   "Tokens of a row; 0: as it was trained, at most 1024 where no job says it")
      ->capture_default_str()
      ->check(CLI::Range(0, 1'000'000'000));
  AddTextOptions(eval, &options->text);
  eval->add_option("--batch", options->batch, "Rows at a time")
      ->capture_default_str()
      ->check(CLI::Range(1, 65'536));
}

}  // namespace terrace
