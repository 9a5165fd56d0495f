// SPDX-License-Identifier: Apache-2.0
#include "worker/data/text_source.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace terrace {
namespace {

// Short enough that the sums of a unigram model, which are floats, keep their precision.
constexpr size_t kPieceBytes = size_t{1} << 16;
// The JSON library quotes what it read of a bad line, which may be all of a long one.
constexpr size_t kQuotedBytesMax = 400;

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

bool IsOfNumber(char c) { return absl::ascii_isalnum(c) || c == '+' || c == '-' || c == '.'; }

// Words that Python's json writes and reads as numbers, and numbers that no double holds.
bool IsNotFinite(std::string_view word) {
  if (word == "NaN" || word == "Infinity" || word == "-Infinity") return true;
  double number = 0;
  return word.find_first_of("0123456789") != std::string_view::npos &&
         absl::SimpleAtod(Absl(word), &number) && std::isinf(number);
}

// With null for numbers that are not finite, wherever they stand but in strings.
std::string WithoutNotFinite(std::string_view line) {
  std::string cleaned;
  bool in_string = false;
  for (size_t i = 0; i < line.size();) {
    if (!in_string && IsOfNumber(line[i])) {
      const size_t begin = i;
      while (i < line.size() && IsOfNumber(line[i])) ++i;
      const std::string_view word = line.substr(begin, i - begin);
      cleaned.append(IsNotFinite(word) ? "null" : word);
      continue;
    }
    if (line[i] == '"') in_string = !in_string;
    if (in_string && line[i] == '\\' && i + 1 < line.size()) cleaned.push_back(line[i++]);
    cleaned.push_back(line[i++]);
  }
  return cleaned;
}

// As Python reads it: other fields than the text may hold NaN.
nlohmann::json ParseLine(std::string_view line) {
  try {
    return nlohmann::json::parse(line);
  } catch (const nlohmann::json::exception&) {
    const std::string cleaned = WithoutNotFinite(line);
    nlohmann::json object = nlohmann::json::parse(cleaned, nullptr, /*allow_exceptions=*/false);
    if (cleaned == line || object.is_discarded()) throw;
    return object;
  }
}

absl::StatusOr<std::string> TextOfLine(std::string_view line) {
  try {
    nlohmann::json object = ParseLine(line);
    if (!object.is_object()) return absl::InvalidArgumentError("not a JSON object");
    const auto text = object.find("text");
    if (text == object.end()) return absl::InvalidArgumentError("no field \"text\"");
    if (!text->is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"text\" is ", text->type_name(), ", must be a string"));
    }
    return std::move(text->get_ref<std::string&>());
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(CleanLine(error.what(), kQuotedBytesMax));
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

absl::Status VisitText(std::string_view content, TextFormat format, bool any_bytes,
                       std::string_view path, const TextPieceVisitor& visit) {
  return format == TextFormat::kText ? VisitPlain(content, any_bytes, path, visit)
                                     : VisitJsonLines(content, path, visit);
}

}  // namespace terrace
