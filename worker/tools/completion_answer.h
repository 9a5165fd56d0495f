// Answers to requests for completions as OpenAI's API has them: whole, or as server-sent events
// (WHATWG HTML, section 9.2), one a part of a text.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "worker/data/tokenizer.h"
#include "worker/tools/completion_request.h"
#include "worker/tools/growing_texts.h"

namespace terrace {

struct Choice {
  std::vector<int32_t> ids;  // the prompt's and the new ones
  int64_t prompt_tokens = 0;
  std::string text;  // what was added
  const char* finish = "";
  // Where logprobs were asked for: of the prompt's tokens but the first, where there is an echo,
  // then of the new ones.
  std::vector<TokenScore> scores;
};

// What a choice has got since its last part.
struct ChoicePart {
  int64_t index = 0;  // of the choice
  bool first = false;
  std::string_view text;
  std::span<const int32_t> ids;
  std::span<const TokenScore> scores;  // of each of `ids`; empty where none were asked for
  size_t offset = 0;                   // bytes of the tokens before these
  const char* finish = nullptr;        // null: more comes
};

struct AnswerHead {
  bool chat = false;  // /v1/chat/completions
  std::string id;
  int64_t created_unix = 0;
  std::string model;
};

// One line of JSON.
std::string AnswerJson(const AnswerHead& head, const CompletionRequest& request,
                       std::span<const Choice> choices, const Tokenizer& tokenizer);
// Events. What ends a stream is the last of them.
std::string PartEvent(const AnswerHead& head, const ChoicePart& part, const Tokenizer& tokenizer);
std::string UsageEvent(const AnswerHead& head, const CompletionRequest& request,
                       std::span<const Choice> choices);
std::string ErrorEvent(std::string_view message);
std::string LastEvent();

// {"error": {"message", "type"}}
std::string CompletionErrorJson(std::string_view message, std::string_view type);

}  // namespace terrace
