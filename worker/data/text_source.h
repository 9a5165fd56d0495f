// Walks the documents of a text file in pieces of bounded size: a .txt file is one document, each
// line of a .jsonl file is one (json_line.h), in one piece.
//
// Pieces of a .txt file end where no byte-level BPE pattern in use can see across: after a newline
// that is followed by a character that is not white space. So there tokenising piece by piece
// equals tokenising the whole file. (SentencePiece has no such places: for it a piece is what a
// sentence is elsewhere.)
//
// A compressed file (compressed/decompressor.h) is decompressed on the way, never as a whole: its
// pieces are those of the text itself.
//
// Pure apart from the callback and the renderer. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "worker/data/json_line.h"

namespace terrace {

class ChatRenderer;

// kPairLines: lines of two documents each, a chosen and a rejected answer (PairOfJsonLine).
enum class TextFormat { kText, kJsonLines, kPairLines };

// Of a compressed file: a piece or line that is longer is refused, because it has to lie in memory.
inline constexpr int64_t kCompressedPieceMax = int64_t{256} << 20;
// A compressed file whose text is beyond this times its size, and beyond the bytes of a piece, is
// refused: gzip cannot give more than 1,032 times, text gives 3 to 20, and what is left is made to
// fill disks.
inline constexpr int64_t kExpansionMax = 1000;

struct TextPiece {
  std::string_view text;
  bool ends_document = false;
  int64_t consumed_bytes = 0;                      // of the file, this piece included
  const std::vector<TextSpan>* counted = nullptr;  // what the loss counts; null: all
  bool ends_itself = false;  // a template wrote its end: no end-of-text token follows
};
using TextPieceVisitor = std::function<absl::Status(const TextPiece&)>;

// `file`: the bytes of the file of that `path`, which says by its name whether they are compressed.
// INVALID_ARGUMENT with `path` and the line of a bad JSON line, the byte where a text is not UTF-8
// (unless `any_bytes`) or where what is compressed cannot be read; the visitor's own failure
// otherwise. `chats` renders conversations; null where there can be none.
absl::Status VisitText(std::span<const std::byte> file, TextFormat format, bool any_bytes,
                       std::string_view path, ChatRenderer* chats, const TextPieceVisitor& visit);

}  // namespace terrace
