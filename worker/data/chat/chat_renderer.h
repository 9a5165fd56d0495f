// Lines of conversations ("messages", "conversations") as text, and which of it are answers.
//
// Used only on one thread at a time.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/data/chat/chat_template.h"
#include "worker/data/chat/template_process.h"
#include "worker/data/json_line.h"

namespace terrace {

struct ChatOptions {
  bool answers = true;  // find them; false: all of the text counts (data.loss_on: all)
  // The tokenizer finds special tokens in a text, as transformers does.
  bool finds_special_tokens = true;
  bool asks = false;  // the text ends where an answer is to begin; nothing is found
};

class ChatRenderer {
 public:
  // `process`: null for one that is started, not confined, when the first line comes. Borrowed.
  ChatRenderer(ChatTemplate chat, ChatOptions options, TemplateProcess* process)
      : chat_(std::move(chat)), options_(options), process_(process) {}

  // `line`: an object with "messages", "conversations", or messages as "prompt" and "completion",
  // without a line feed. INVALID_ARGUMENT says what is wrong with it or with the template, without
  // file and line; FAILED_PRECONDITION: this machine cannot render.
  absl::StatusOr<LineText> Render(std::string_view line);

  const ChatOptions& options() const { return options_; }
  // What the same lines give the same text for.
  std::string fingerprint() const;

 private:
  absl::Status Start();
  absl::StatusOr<LineText> Ask(std::string_view line);

  const ChatTemplate chat_;
  const ChatOptions options_;
  std::unique_ptr<TemplateProcess> own_;
  TemplateProcess* process_;
  bool started_ = false;
};

}  // namespace terrace
