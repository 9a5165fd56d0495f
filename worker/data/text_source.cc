// SPDX-License-Identifier: Apache-2.0
#include "worker/data/text_source.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"

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

absl::StatusOr<std::string> TextOfLine(std::string_view line) {
  try {
    nlohmann::json object = nlohmann::json::parse(line);
    if (!object.is_object()) return absl::InvalidArgumentError("not a JSON object");
    const auto text = object.find("text");
    if (text == object.end()) return absl::InvalidArgumentError("no field \"text\"");
    if (!text->is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"text\" is ", text->type_name(), ", must be a string"));
    }
    return std::move(text->get_ref<std::string&>());
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
}

absl::Status VisitJsonLines(std::string_view content, std::string_view path,
                            const TextPieceVisitor& visit) {
  int64_t line_number = 0;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    const std::string_view line = content.substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const absl::StatusOr<std::string> text = TextOfLine(line);
    if (!text.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(Absl(path), ":", line_number, ": ", text.status().message(),
                       "; each line must be an object such as {\"text\": \"...\"}"));
    }
    RETURN_IF_ERROR(visit({*text, true, static_cast<int64_t>(std::min(begin, content.size()))}));
  }
  return absl::OkStatus();
}

}  // namespace

size_t Utf8Length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto continues = [&](size_t from, size_t length) {
    if (text.size() < length) return false;
    for (size_t i = from; i < length; ++i) {
      if ((byte(i) & 0xc0) != 0x80) return false;
    }
    return true;
  };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  if (lead < 0xe0) return continues(1, 2) ? 2 : 0;
  if (lead < 0xf0) {
    if (!continues(1, 3)) return 0;
    const bool overlong = lead == 0xe0 && byte(1) < 0xa0;
    const bool surrogate = lead == 0xed && byte(1) >= 0xa0;
    return overlong || surrogate ? 0 : 3;
  }
  if (!continues(1, 4)) return 0;
  const bool overlong = lead == 0xf0 && byte(1) < 0x90;
  const bool beyond = lead == 0xf4 && byte(1) >= 0x90;
  return overlong || beyond ? 0 : 4;
}

size_t FindInvalidUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = Utf8Length(text.substr(i));
    if (length == 0) return i;
    i += length;
  }
  return text.size();
}

absl::Status VisitText(std::string_view content, TextFormat format, bool any_bytes,
                       std::string_view path, const TextPieceVisitor& visit) {
  return format == TextFormat::kText ? VisitPlain(content, any_bytes, path, visit)
                                     : VisitJsonLines(content, path, visit);
}

}  // namespace terrace
