// SPDX-License-Identifier: Apache-2.0
#include "worker/data/tokenizer_json/splitter.h"

#include <re2/re2.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/data/characters.h"
#include "worker/data/tokenizer_json/pattern_dialect.h"
#include "worker/data/unicode/code_points.h"

namespace terrace::tokenizer_json {
namespace {

constexpr std::string_view kLookAhead = R"(\s+(?!\S))";
constexpr int64_t kAutomatonBytes = 64 << 20;

// `\s+(?!\S)` at `begin`: the whole run at the end of the text, else all but its last character.
size_t LookAheadEnd(std::string_view text, size_t begin) {
  size_t end = begin;
  size_t last = begin;
  while (const size_t length = SpaceLength(text, end)) {
    last = end;
    end += length;
  }
  return end == text.size() ? end : last;
}

absl::StatusOr<std::unique_ptr<RE2>> Compile(const std::vector<std::string>& alternatives) {
  ASSIGN_OR_RETURN(const std::string translated, ToRe2(absl::StrJoin(alternatives, "|")));
  // `^` and `$` stand for the ends of lines in the format.
  const std::string pattern = absl::StrCat("(?m)", translated);
  RE2::Options options;
  options.set_log_errors(false);
  options.set_max_mem(kAutomatonBytes);
  auto compiled = std::make_unique<RE2>(pattern, options);
  if (!compiled->ok()) return absl::InvalidArgumentError(compiled->error());
  return compiled;
}

}  // namespace

Splitter::Splitter() = default;
Splitter::Splitter(Splitter&&) noexcept = default;
Splitter& Splitter::operator=(Splitter&&) noexcept = default;
Splitter::~Splitter() = default;

absl::StatusOr<Splitter> Splitter::Create(std::string_view pattern) {
  Splitter splitter;
  std::vector<std::string> before, after;
  for (std::string& alternative : TopLevelAlternatives(pattern)) {
    if (alternative == kLookAhead && !splitter.has_look_ahead_) {
      splitter.has_look_ahead_ = true;
    } else {
      (splitter.has_look_ahead_ ? after : before).push_back(std::move(alternative));
    }
  }
  for (const auto& [alternatives, target] :
       {std::pair(&before, &splitter.before_), {&after, &splitter.after_}}) {
    if (alternatives->empty()) continue;
    absl::StatusOr<std::unique_ptr<RE2>> compiled = Compile(*alternatives);
    if (!compiled.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the pattern ", Absl(pattern), " cannot be used: ", compiled.status().message()));
    }
    *target = *std::move(compiled);
    // The library takes each place for a match of nothing and splits there.
    if ((*target)->Match("", 0, 0, RE2::ANCHOR_BOTH, nullptr, 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the pattern ", Absl(pattern),
                       " matches nothing at all, must match at least one character"));
    }
  }
  if (splitter.before_ == nullptr) {
    return absl::InvalidArgumentError("the pre_tokenizer pattern begins with \\s+(?!\\S)");
  }
  return splitter;
}

Splitter Splitter::Literal(std::string text) {
  Splitter splitter;
  splitter.literal_ = std::move(text);
  return splitter;
}

Splitter Splitter::Characters(bool (*holds)(uint32_t code)) {
  Splitter splitter;
  splitter.holds_ = holds;
  return splitter;
}

Splitter::Part Splitter::NextCharacter(std::string_view text, size_t begin) const {
  for (size_t end = begin; end < text.size();) {
    size_t next = end;
    const bool is_match = holds_(NextCode(text, &next));
    if (is_match) return end == begin ? Part{next, true} : Part{end, false};
    end = next;
  }
  return {text.size(), false};
}

size_t Splitter::MatchEnd(std::string_view text, size_t begin) const {
  const re2::StringPiece input(text.data(), text.size());
  re2::StringPiece match;
  if (before_->Match(input, begin, text.size(), RE2::ANCHOR_START, &match, 1) && !match.empty()) {
    return begin + match.size();
  }
  if (!has_look_ahead_) return begin;
  if (const size_t end = LookAheadEnd(text, begin); end > begin) return end;
  if (after_ != nullptr && after_->Match(input, begin, text.size(), RE2::ANCHOR_START, &match, 1)) {
    return begin + match.size();
  }
  return begin;
}

Splitter::Part Splitter::Next(std::string_view text, size_t begin) const {
  if (holds_ != nullptr) return NextCharacter(text, begin);
  if (!literal_.empty()) {
    const size_t found = text.find(literal_, begin);
    if (found == begin) return {begin + literal_.size(), true};
    return {std::min(found, text.size()), false};
  }
  if (const size_t end = MatchEnd(text, begin); end > begin) return {end, true};
  // A part between two matches. Patterns with the look-ahead match every character, so this is
  // short or not at all.
  size_t end = begin + 1;
  while (end < text.size() && ((text[end] & 0xc0) == 0x80 || MatchEnd(text, end) == end)) ++end;
  return {end, false};
}

}  // namespace terrace::tokenizer_json
