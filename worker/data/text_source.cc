// SPDX-License-Identifier: Apache-2.0
#include "worker/data/text_source.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "worker/data/chat/chat_renderer.h"
#include "worker/data/json_line.h"

namespace terrace {
namespace {

// Short enough that the sums of a unigram model, which are floats, keep their precision.
constexpr size_t kPieceBytes = size_t{1} << 16;

// Lead bytes of white space beyond ASCII (U+0085, U+00A0, U+1680, U+2000.., U+3000) are excluded
// with their neighbours.
bool StartsNonSpace(unsigned char c) {
  return (c > 0x20 && c < 0x7f) || (c >= 0xc3 && (c < 0xe1 || c > 0xe3));
}

size_t PieceEnd(std::string_view text, size_t begin) {
  size_t newline = begin + kPieceBytes;
  while (newline < text.size() && (newline = text.find('\n', newline)) != std::string_view::npos) {
    ++newline;
    if (newline < text.size() && StartsNonSpace(text[newline])) return newline;
  }
  return text.size();
}

absl::Status CheckUtf8(std::string_view text, std::string_view path, size_t offset) {
  const size_t bad = FindInvalidUtf8(text);
  if (bad == text.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Absl(path), " is not UTF-8 at byte ", offset + bad,
                   "; convert it (iconv -f latin1 -t utf-8) or use data.tokenizer: bytes"));
}

absl::Status VisitPlain(std::string_view content, bool any_bytes, std::string_view path,
                        const TextPieceVisitor& visit) {
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = PieceEnd(content, begin);
    const std::string_view text = content.substr(begin, end - begin);
    if (!any_bytes) RETURN_IF_ERROR(CheckUtf8(text, path, begin));
    RETURN_IF_ERROR(visit({text, end == content.size(), static_cast<int64_t>(end)}));
    begin = end;
  }
  return absl::OkStatus();
}

absl::StatusOr<LineText> TextOfLine(std::string_view line, ChatRenderer* chats) {
  ASSIGN_OR_RETURN(LineText text, TextOfJsonLine(line));
  if (!text.is_chat) return text;
  if (chats == nullptr) return absl::InvalidArgumentError("a conversation cannot be rendered here");
  return chats->Render(line);
}

absl::Status VisitJsonLines(std::string_view content, std::string_view path, ChatRenderer* chats,
                            const TextPieceVisitor& visit) {
  int64_t line_number = 0;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    const std::string_view line = content.substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const absl::StatusOr<LineText> document = TextOfLine(line, chats);
    if (!document.ok()) {
      return absl::Status(document.status().code(), absl::StrCat(Absl(path), ":", line_number, ": ",
                                                                 document.status().message()));
    }
    RETURN_IF_ERROR(visit({.text = document->text,
                           .ends_document = true,
                           .consumed_bytes = static_cast<int64_t>(std::min(begin, content.size())),
                           .counted = document->counted ? &*document->counted : nullptr,
                           .ends_itself = document->is_chat}));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status VisitText(std::string_view content, TextFormat format, bool any_bytes,
                       std::string_view path, ChatRenderer* chats, const TextPieceVisitor& visit) {
  return format == TextFormat::kText ? VisitPlain(content, any_bytes, path, visit)
                                     : VisitJsonLines(content, path, chats, visit);
}

}  // namespace terrace
