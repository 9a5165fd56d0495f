// Walks the documents of a text file in pieces of bounded size: a .txt file is one document, each
// line of a .jsonl file is one (json_line.h), in one piece.
//
// Pieces of a .txt file end where no byte-level BPE pattern in use can see across: after a newline
// that is followed by a character that is not white space. So there tokenising piece by piece
// equals tokenising the whole file. (SentencePiece has no such places: for it a piece is what a
// sentence is elsewhere.)
//
// Pure apart from the callback and the renderer. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "worker/data/json_line.h"

namespace terrace {

class ChatRenderer;

enum class TextFormat { kText, kJsonLines };

struct TextPiece {
  std::string_view text;
  bool ends_document = false;
  int64_t consumed_bytes = 0;                      // of the file, this piece included
  const std::vector<TextSpan>* counted = nullptr;  // what the loss counts; null: all
  bool ends_itself = false;  // a template wrote its end: no end-of-text token follows
};
using TextPieceVisitor = std::function<absl::Status(const TextPiece&)>;

// INVALID_ARGUMENT with `path` and the line of a bad JSON line, or the byte where a text is not
// UTF-8 (unless `any_bytes`); the visitor's own failure otherwise.
// `chats` renders conversations; null where there can be none.
absl::Status VisitText(std::string_view content, TextFormat format, bool any_bytes,
                       std::string_view path, ChatRenderer* chats, const TextPieceVisitor& visit);

}  // namespace terrace
