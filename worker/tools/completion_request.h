// Requests for completions as OpenAI's API has them (POST /v1/completions), and the answers. What
// is asked for and not done here is refused by its name, never ignored.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/tokenizer.h"
#include "worker/tools/continuation.h"
#include "worker/tools/growing_texts.h"

namespace terrace {

struct CompletionRequest {
  std::vector<std::vector<int32_t>> prompts;  // tokens
  std::vector<std::string> texts;             // of the prompts, as given or decoded
  int64_t choices = 1;                        // of each prompt ("n")
  ContinuationOptions each;
  bool echo = false;                // the answer begins with the prompt
  std::optional<int64_t> logprobs;  // so many of the likeliest tokens beside each token's own
};

struct CompletionLimits {
  int64_t max_length = 0;  // tokens of a prompt and what is added
  int64_t vocabulary = 0;
};

// INVALID_ARGUMENT names the key, its value, the rule and the way out.
absl::StatusOr<CompletionRequest> ReadCompletionRequest(std::string_view json,
                                                        const Tokenizer& tokenizer,
                                                        const CompletionLimits& limits);

// The line that a template renders of a request for a chat (POST /v1/chat/completions), and what
// else is asked for; `prompt` of the latter is the rendered text, which ReadCompletionRequest gets.
struct ChatRequest {
  std::string line;     // {"messages", "tools", ...}
  std::string request;  // the rest
};
absl::StatusOr<ChatRequest> ReadChatRequest(std::string_view json);
// The request as one for a completion of `text`. Without max_tokens it may fill the context.
absl::StatusOr<CompletionRequest> ReadAnswerRequest(const ChatRequest& chat,
                                                    const std::string& text,
                                                    const Tokenizer& tokenizer,
                                                    const CompletionLimits& limits);

struct Choice {
  std::vector<int32_t> ids;  // the prompt's and the new ones
  int64_t prompt_tokens = 0;
  std::string text;  // what was added
  const char* finish = "";
  // Where logprobs were asked for: of the prompt's tokens but the first, where there is an echo,
  // then of the new ones.
  std::vector<TokenScore> scores;
};
struct CompletionAnswer {
  std::string id;
  int64_t created_unix = 0;
  std::string model;
  std::vector<Choice> choices;
};
// One line of JSON.
std::string CompletionJson(const CompletionRequest& request, const CompletionAnswer& answer,
                           const Tokenizer& tokenizer);
// The same of a chat.
std::string ChatJson(const CompletionAnswer& answer);
// {"error": {"message", "type"}}
std::string CompletionErrorJson(std::string_view message, std::string_view type);

}  // namespace terrace
