// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/hjson.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

// Deeper than any configuration; the parser calls itself once a level.
constexpr int kDepthMax = 64;
constexpr std::string_view kPunctuation = "{}[],:";
constexpr std::string_view kSpaces = " \t\r";

std::string_view Trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

// true, false, null or a number as JSON has them; discarded for any other text, which is a string.
Json LiteralOf(std::string_view text) {
  if (text.empty() || text.front() == '"' || text.front() == '{' || text.front() == '[')
    return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

// A number beyond what a double holds; JSON's parser takes it for no value at all.
bool IsTooLarge(std::string_view text) {
  double value = 0;
  return text.find_first_not_of("0123456789+-.eE") == std::string_view::npos &&
         absl::SimpleAtod(Absl(text), &value) && std::isinf(value);
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  absl::StatusOr<Json> Run() {
    RETURN_IF_ERROR(SkipSpace());
    Json value;
    if (Peek() == '{' || Peek() == '[') {
      ASSIGN_OR_RETURN(value, Value(0));
    } else {
      ASSIGN_OR_RETURN(value, Members(0, /*braces=*/false));
    }
    RETURN_IF_ERROR(SkipSpace());
    if (at_ < text_.size()) return Bad("nothing behind the value");
    return value;
  }

 private:
  char Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool StartsWith(std::string_view word) const { return text_.substr(at_).starts_with(word); }

  absl::Status Bad(std::string_view must) const {
    const size_t end = std::min(at_, text_.size());
    const std::string_view before = text_.substr(0, end);
    const size_t line = std::count(before.begin(), before.end(), '\n') + 1;
    const size_t start = before.rfind('\n');
    const size_t column = end - (start == std::string_view::npos ? 0 : start + 1) + 1;
    const std::string got =
        at_ < text_.size() ? absl::StrCat("'", CleanLine(text_.substr(at_, 1)), "'") : "the end";
    return absl::InvalidArgumentError(
        absl::StrCat("line ", line, ", column ", column, ": got ", got, ", must be ", Absl(must)));
  }

  absl::Status SkipSpace() {
    while (at_ < text_.size()) {
      if (std::isspace(static_cast<unsigned char>(Peek()))) {
        ++at_;
      } else if (Peek() == '#' || StartsWith("//")) {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (StartsWith("/*")) {
        const size_t end = text_.find("*/", at_ + 2);
        if (end == std::string_view::npos) return Bad("a comment that ends with */");
        at_ = end + 2;
      } else {
        break;
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Json> Value(int depth) {
    if (depth > kDepthMax) return Bad(absl::StrCat("nested at most ", kDepthMax, " deep"));
    if (Peek() == '{') {
      ++at_;
      return Members(depth, /*braces=*/true);
    }
    if (Peek() == '[') {
      ++at_;
      return Elements(depth);
    }
    if (StartsWith("'''")) return LongText();
    if (Peek() == '"' || Peek() == '\'') return Quoted();
    return Quoteless();
  }

  absl::StatusOr<Json> Members(int depth, bool braces) {
    Json object = Json::object();
    while (true) {
      RETURN_IF_ERROR(SkipSpace());
      if (braces && Peek() == '}') {
        ++at_;
        return object;
      }
      if (at_ >= text_.size()) {
        if (braces) return Bad("a '}' or another key");
        return object;
      }
      ASSIGN_OR_RETURN(const std::string key, Key());
      if (object.contains(key)) {
        return absl::InvalidArgumentError(
            absl::StrCat(CleanLine(key), ": got the key twice, must be given once"));
      }
      RETURN_IF_ERROR(SkipSpace());
      if (Peek() != ':') return Bad("':' behind a key");
      ++at_;
      RETURN_IF_ERROR(SkipSpace());
      ASSIGN_OR_RETURN(object[key], Value(depth + 1));
      RETURN_IF_ERROR(SkipComma());
    }
  }

  absl::StatusOr<Json> Elements(int depth) {
    Json list = Json::array();
    while (true) {
      RETURN_IF_ERROR(SkipSpace());
      if (Peek() == ']') {
        ++at_;
        return list;
      }
      if (at_ >= text_.size()) return Bad("a ']' or another value");
      ASSIGN_OR_RETURN(Json element, Value(depth + 1));
      list.push_back(std::move(element));
      RETURN_IF_ERROR(SkipComma());
    }
  }

  absl::Status SkipComma() {
    RETURN_IF_ERROR(SkipSpace());
    if (Peek() == ',') ++at_;
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Key() {
    if (Peek() == '"' || Peek() == '\'') {
      ASSIGN_OR_RETURN(const Json key, Quoted());
      return key.get<std::string>();
    }
    const size_t begin = at_;
    while (at_ < text_.size() && kPunctuation.find(Peek()) == std::string_view::npos &&
           !std::isspace(static_cast<unsigned char>(Peek()))) {
      ++at_;
    }
    if (at_ == begin) return Bad("a key");
    return std::string(text_.substr(begin, at_ - begin));
  }

  // JSON's string, or the same between single quotes.
  absl::StatusOr<Json> Quoted() {
    const char quote = Peek();
    const size_t begin = at_;
    std::string json = "\"";
    for (++at_; at_ < text_.size() && Peek() != quote && Peek() != '\n'; ++at_) {
      if (Peek() == '\\' && Peek(1) == '\'') ++at_;  // JSON knows no \'
      if (Peek() == '"') json += '\\';
      json += Peek();
      if (Peek() == '\\' && at_ + 1 < text_.size()) json += text_[++at_];
    }
    if (Peek() != quote) return Bad("a string that ends in its line");
    ++at_;
    json += '"';
    Json value = Json::parse(json, nullptr, /*allow_exceptions=*/false);
    if (value.is_string()) return value;
    at_ = begin;
    return Bad("a string with the escapes of JSON, in UTF-8");
  }

  // Between ''' and ''': the indentation of the first ''' goes, and the line feeds at both ends.
  absl::StatusOr<Json> LongText() {
    const size_t line = text_.rfind('\n', at_);
    const size_t indent = at_ - (line == std::string_view::npos ? 0 : line + 1);
    const size_t end = text_.find("'''", at_ + 3);
    if (end == std::string_view::npos) return Bad("a text that ends with '''");
    std::string_view raw = text_.substr(at_ + 3, end - at_ - 3);
    at_ = end + 3;
    raw.remove_prefix(std::min(raw.find_first_not_of(kSpaces), raw.size()));
    if (raw.starts_with('\n')) raw.remove_prefix(1);
    std::string text;
    while (!raw.empty()) {
      size_t skip = 0;
      while (skip < indent && skip < raw.size() &&
             kSpaces.find(raw[skip]) != std::string_view::npos)
        ++skip;
      raw.remove_prefix(skip);
      const size_t next = std::min(raw.find('\n'), raw.size());
      text += raw.substr(0, std::min(next + 1, raw.size()));
      raw.remove_prefix(std::min(next + 1, raw.size()));
    }
    if (text.ends_with('\n')) text.pop_back();
    return Json(text);
  }

  // A literal ends where JSON would let it end; anything else is a string to the end of its line.
  absl::StatusOr<Json> Quoteless() {
    if (at_ >= text_.size() || kPunctuation.find(Peek()) != std::string_view::npos)
      return Bad("a value");
    const size_t end = std::min(text_.find('\n', at_), text_.size());
    for (size_t i = at_; i <= end; ++i) {
      const std::string_view rest = text_.substr(i);
      const bool stops = i == end || rest.front() == ',' || rest.front() == '}' ||
                         rest.front() == ']' || rest.front() == '#' || rest.starts_with("//") ||
                         rest.starts_with("/*");
      if (!stops) continue;
      const std::string_view word = Trimmed(text_.substr(at_, i - at_));
      if (IsTooLarge(word)) return Bad("a number that fits into 64 bits");
      Json literal = LiteralOf(word);
      if (literal.is_discarded()) break;
      at_ = i;
      return literal;
    }
    const std::string_view word = Trimmed(text_.substr(at_, end - at_));
    at_ = end;
    return Json(std::string(word));
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

absl::StatusOr<Json> ParseHjson(std::string_view text) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  return Parser(text).Run();
}

}  // namespace terrace
