// One line of a .jsonl file as a document: its text, and how much of it is a prompt, whose tokens
// the loss does not count. Three forms, told apart by their fields:
//
//   {"text": "..."}
//   {"prompt": "...", "completion": "..."}
//   {"instruction": "...", "input": "...", "output": "..."}, where "input" may be absent or empty:
//       in the words that Stanford Alpaca was trained with (Taori et al. 2023,
//       github.com/tatsu-lab/stanford_alpaca)
//
// Other fields are ignored, and so is the text of a line that has one of the pairs. Pure and
// thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace terrace {

struct LineText {
  std::string text;
  size_t prompt_bytes = 0;  // at the start of the text
};

// INVALID_ARGUMENT with what is wrong and how lines must be, without file and line.
absl::StatusOr<LineText> TextOfJsonLine(std::string_view line);

}  // namespace terrace
