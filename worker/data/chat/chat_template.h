// The chat template of a tokenizer, and the texts of special tokens that it may name, from the
// files beside it as transformers reads them: chat_template.jinja with additional_chat_templates/,
// else "chat_template" of tokenizer_config.json, a text or a list of named ones.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace terrace {

struct ChatTemplate {
  std::string where;                          // the file, for messages
  std::map<std::string, std::string> texts;   // by name; empty: there is no template
  std::map<std::string, std::string> tokens;  // "bos_token" and others

  // Of all of it: caches of what it rendered are named after it.
  uint64_t hash() const;
};

// `tokenizer` as data.tokenizer has it; `file`: a .jinja file that counts instead, or "".
// INVALID_ARGUMENT, NOT_FOUND name a file that cannot be used.
absl::StatusOr<ChatTemplate> ReadChatTemplate(std::string_view tokenizer, std::string_view file);

}  // namespace terrace
