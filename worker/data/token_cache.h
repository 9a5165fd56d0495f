// The token cache: the tokens of one text file under one tokenizer, written once and then
// memory-mapped (docs/formats.md has the bytes). A cache is written under a temporary name, fsynced
// and renamed, while a file lock makes the other ranks of the node wait instead of doing the same
// work. A text that changed (size or modification time) is tokenised again, and conversations also
// where their template did. A cache is open to whom
// its text is.
//
// Thread-safe: no state; safe between processes.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/data/text_source.h"
#include "worker/data/token_dataset.h"
#include "worker/data/token_segment.h"
#include "worker/data/tokenizer.h"

namespace terrace {

class ChatRenderer;

struct TokenCacheRequest {
  std::string source;  // path of the text
  TextFormat format = TextFormat::kText;
  const Tokenizer* tokenizer = nullptr;
  std::string folder;             // created when missing
  ChatRenderer* chats = nullptr;  // of conversations, which are refused without it
  bool answers_alone = true;      // false: the loss counts prompts, too (data.loss_on: all)
};

struct CachedTokens {
  TokenSegment segment;  // its path is the source's, for messages
  uint32_t max_id = 0;
  bool was_cached = false;
};

// Opens the cache, or makes it first. NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT (text that is
// not UTF-8, bad JSON), RESOURCE_EXHAUSTED (full disk; nothing stays behind).
absl::StatusOr<CachedTokens> OpenTokenCache(const TokenCacheRequest& request,
                                            const DataProgress& progress);

}  // namespace terrace
