// One line of a .jsonl file as a document: its text, and which of it are answers, which alone the
// loss counts. Four forms, told apart by their fields:
//
//   {"text": "..."}
//   {"prompt": "...", "completion": "..."}, or both as lists of messages, of which the completion
//       counts as a whole (TRL's two forms)
//   {"instruction": "...", "input": "...", "output": "..."}, where "input" may be absent or empty:
//       in the words that Stanford Alpaca was trained with (Taori et al. 2023,
//       github.com/tatsu-lab/stanford_alpaca)
//   {"messages": [...]} or {"conversations": [...]}: a chat template makes their text
//       (chat/chat_renderer.h), and that of a prompt and completion of messages
//
// A pair counts before a conversation, and both before a text: a line that has several is for
// readers of less. Other fields are ignored.
//
// Lines of preferences are two documents, in TRL's two forms:
//
//   {"prompt": "...", "chosen": "...", "rejected": "..."}, all texts, or all lists of messages
//   {"chosen": "...", "rejected": "..."}, both with the prompt: what they begin with alike
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace {

struct TextSpan {  // in bytes
  size_t begin = 0, end = 0;
};

struct LineText {
  std::string text;
  std::optional<std::vector<TextSpan>> counted;  // ascending, apart; none: all of the text counts
  // A conversation: as TextOfJsonLine returns it without a text. A template writes all that ends
  // it, and the tokenizer's end-of-text token does not follow.
  bool is_chat = false;
};

// INVALID_ARGUMENT with what is wrong and how lines must be, without file and line.
absl::StatusOr<LineText> TextOfJsonLine(std::string_view line);

// An answer behind the prompt, which alone counts. Of a conversation (is_chat) the text is a line
// of "prompt" and "completion" for who renders it.
struct LinePair {
  LineText chosen, rejected;
};
// Likewise.
absl::StatusOr<LinePair> PairOfJsonLine(std::string_view line);

}  // namespace terrace
