// SPDX-License-Identifier: Apache-2.0
#include "worker/data/text_source.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/paths/compression.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "worker/data/chat/chat_renderer.h"
#include "worker/data/compressed/decompressor.h"
#include "worker/data/json_line.h"

namespace terrace {
namespace {

// Short enough that the sums of a unigram model, which are floats, keep their precision.
constexpr size_t kPieceBytes = size_t{1} << 16;
constexpr size_t kReadBytes = size_t{1} << 20;  // of a compressed text at once

// Lead bytes of white space beyond ASCII (U+0085, U+00A0, U+1680, U+2000.., U+3000) are excluded
// with their neighbours.
bool StartsNonSpace(unsigned char c) {
  return (c > 0x20 && c < 0x7f) || (c >= 0xc3 && (c < 0xe1 || c > 0xe3));
}

// 0: that does not show yet, since more text follows.
size_t PieceEnd(std::string_view text, bool is_all) {
  size_t newline = kPieceBytes;
  while (newline < text.size() && (newline = text.find('\n', newline)) != std::string_view::npos) {
    ++newline;
    if (newline < text.size() && StartsNonSpace(text[newline])) return newline;
  }
  return is_all ? text.size() : 0;
}

absl::Status CheckUtf8(std::string_view text, std::string_view path, size_t offset) {
  const size_t bad = FindInvalidUtf8(text);
  if (bad == text.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Absl(path), " is not UTF-8 at byte ", offset + bad,
                   "; convert it (iconv -f latin1 -t utf-8) or use data.tokenizer: bytes"));
}

absl::StatusOr<LineText> Render(std::string_view line, ChatRenderer* chats) {
  if (chats == nullptr) return absl::InvalidArgumentError("a conversation cannot be rendered here");
  return chats->Render(line);
}

// The documents of a line: one, or of a pair the chosen and the rejected answer.
absl::StatusOr<std::vector<LineText>> TextsOfLine(std::string_view line, TextFormat format,
                                                  ChatRenderer* chats) {
  std::vector<LineText> texts;
  if (format != TextFormat::kPairLines) {
    ASSIGN_OR_RETURN(texts.emplace_back(), TextOfJsonLine(line));
    if (texts[0].is_chat) {
      ASSIGN_OR_RETURN(texts[0], Render(line, chats));
    }
    return texts;
  }
  ASSIGN_OR_RETURN(LinePair pair, PairOfJsonLine(line));
  texts = {std::move(pair.chosen), std::move(pair.rejected)};
  for (LineText& text : texts) {
    if (text.is_chat) {
      ASSIGN_OR_RETURN(text, Render(text.text, chats));
    }
  }
  return texts;
}

// Where in a text the walk is, and what to do with what it passes.
class Walk {
 public:
  Walk(TextFormat format, bool any_bytes, std::string_view path, ChatRenderer* chats,
       const TextPieceVisitor& visit)
      : format_(format), any_bytes_(any_bytes), path_(path), chats_(chats), visit_(visit) {}

  // Visits what of `text`, the next of the file, is whole, and returns how much that is; the rest
  // is to begin the next text. `is_all`: nothing follows, and all of it is visited. `used_bytes`:
  // of a compressed file so far; none: the bytes of the text are those of the file.
  absl::StatusOr<size_t> Visit(std::string_view text, bool is_all,
                               std::optional<int64_t> used_bytes) {
    size_t done = 0;
    while (done < text.size()) {
      const std::string_view rest = text.substr(done);
      const size_t size =
          format_ == TextFormat::kText ? PieceEnd(rest, is_all) : LineEnd(rest, is_all);
      if (size == 0) break;
      const int64_t end = passed_ + static_cast<int64_t>(size);
      TextPiece piece = {.text = rest.substr(0, size),
                         .ends_document = is_all && size == rest.size(),
                         .consumed_bytes = used_bytes.value_or(end)};
      RETURN_IF_ERROR(format_ == TextFormat::kText ? VisitPiece(piece) : VisitLine(piece));
      passed_ = end;
      done += size;
    }
    return done;
  }

  // "corpus.txt.gz: the text from byte 12 on".
  std::string Place() const {
    return format_ == TextFormat::kText
               ? absl::StrCat(Absl(path_), ": the text from byte ", passed_, " on")
               : absl::StrCat(Absl(path_), ":", lines_ + 1, ": the line");
  }

 private:
  static size_t LineEnd(std::string_view text, bool is_all) {
    const size_t newline = text.find('\n');
    if (newline != std::string_view::npos) return newline + 1;
    return is_all ? text.size() : 0;
  }

  absl::Status VisitPiece(const TextPiece& piece) const {
    if (!any_bytes_) RETURN_IF_ERROR(CheckUtf8(piece.text, path_, passed_));
    return visit_(piece);
  }

  absl::Status VisitLine(TextPiece piece) {
    ++lines_;
    std::string_view line = piece.text;
    if (line.ends_with('\n')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) return absl::OkStatus();
    const absl::StatusOr<std::vector<LineText>> documents = TextsOfLine(line, format_, chats_);
    if (!documents.ok()) {
      return absl::Status(documents.status().code(), absl::StrCat(Absl(path_), ":", lines_, ": ",
                                                                  documents.status().message()));
    }
    for (const LineText& document : *documents) {
      piece.text = document.text;
      piece.ends_document = true;
      piece.counted = document.counted ? &*document.counted : nullptr;
      piece.ends_itself = document.is_chat;
      RETURN_IF_ERROR(visit_(piece));
    }
    return absl::OkStatus();
  }

  const TextFormat format_;
  const bool any_bytes_;
  const std::string_view path_;
  ChatRenderer* const chats_;
  const TextPieceVisitor& visit_;
  int64_t passed_ = 0;  // bytes of the text
  int64_t lines_ = 0;
};

absl::Status CheckExpansion(std::string_view path, int64_t text_bytes, int64_t used_bytes) {
  if (text_bytes <= kCompressedPieceMax || text_bytes / kExpansionMax <= used_bytes)
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      Absl(path), ": the first ", used_bytes, " bytes give more than ", kExpansionMax,
      " times as much text (", text_bytes,
      " bytes), as nothing does that one learns from; name the text itself, decompressed"));
}

// The text lies in a buffer from the first byte of a piece on, which grows until the piece ends.
absl::Status VisitCompressed(std::span<const std::byte> file, std::string_view path, Walk* walk) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Decompressor> from, OpenDecompressor(path, file));
  std::string buffer;
  int64_t text_bytes = 0;
  for (bool is_all = false; !is_all;) {
    // As much again as there is: a long line is looked through a few times only.
    const size_t held = buffer.size();
    buffer.resize(held + std::max(kReadBytes, held));
    ASSIGN_OR_RETURN(const size_t read, from->Read(std::span(buffer).subspan(held)));
    buffer.resize(held + read);
    is_all = read == 0;
    text_bytes += static_cast<int64_t>(read);
    RETURN_IF_ERROR(CheckExpansion(path, text_bytes, from->consumed_bytes()));
    ASSIGN_OR_RETURN(const size_t done, walk->Visit(buffer, is_all, from->consumed_bytes()));
    buffer.erase(0, done);
    if (static_cast<int64_t>(buffer.size()) > kCompressedPieceMax) {
      return absl::InvalidArgumentError(
          absl::StrCat(walk->Place(), " has more than ", kCompressedPieceMax,
                       " bytes without an end; cut it, or name the file decompressed"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VisitText(std::span<const std::byte> file, TextFormat format, bool any_bytes,
                       std::string_view path, ChatRenderer* chats, const TextPieceVisitor& visit) {
  Walk walk(format, any_bytes, path, chats, visit);
  if (CompressionOf(path) != Compression::kNone) return VisitCompressed(file, path, &walk);
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  return walk.Visit(text, /*is_all=*/true, std::nullopt).status();
}

}  // namespace terrace
