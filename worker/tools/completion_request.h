// Requests for completions as OpenAI's API has them (POST /v1/completions, /v1/chat/completions).
// What is asked for and not done here is refused by its name, never ignored.
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

namespace terrace {

struct CompletionRequest {
  std::vector<std::vector<int32_t>> prompts;  // tokens
  std::vector<std::string> texts;             // of the prompts, as given or decoded
  int64_t choices = 1;                        // of each prompt ("n")
  ContinuationOptions each;
  bool echo = false;                // the answer begins with the prompt
  std::optional<int64_t> logprobs;  // so many of the likeliest tokens beside each token's own
  bool stream = false;              // the answer comes in parts
  bool usage = false;               // ... of which one counts the tokens
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

}  // namespace terrace
