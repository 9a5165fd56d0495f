// SPDX-License-Identifier: Apache-2.0
#include "worker/data/tokenizer_json/normalizer_steps.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "worker/data/characters.h"
#include "worker/data/unicode/character_class.h"
#include "worker/data/unicode/code_points.h"

namespace terrace::tokenizer_json {

Normalizer::Step NormalFormStep(NormalForm form) {
  return [form](std::string_view text, std::string* out, size_t* start_bytes) {
    if (IsSurelyNormal(text, form)) return false;
    *out = Normalize(text, form);
    *start_bytes = std::min(Normalize(text.substr(0, *start_bytes), form).size(), out->size());
    return true;
  };
}

Normalizer::Step LowercaseStep() {
  return [](std::string_view text, std::string* out, size_t* start_bytes) {
    *out = Lowercase(text);
    *start_bytes = Lowercase(text.substr(0, *start_bytes)).size();
    return true;
  };
}

Normalizer::Step MapStep(uint32_t (*map)(uint32_t code)) {
  return [map](std::string_view text, std::string* out, size_t* start_bytes) {
    size_t start = 0;
    for (size_t i = 0; i < text.size();) {
      const bool at_start = i < *start_bytes;
      const uint32_t code = map(NextCode(text, &i));
      if (code != kNoCode) AppendCode(code, out);
      if (at_start) start = out->size();
    }
    *start_bytes = start;
    return true;
  };
}

uint32_t WithoutMarks(uint32_t code) { return IsMark(code) ? kNoCode : code; }

uint32_t WithoutControls(uint32_t code) {
  const auto is_in = [code](uint32_t first, uint32_t last) {
    return code >= first && code <= last;
  };
  const bool is_space = code == 0x9 || code == 0xa || code == 0xc || code == 0xd ||
                        code == 0x1680 || is_in(0x200b, 0x200f) || code == 0x2028 ||
                        code == 0x2029 || code == 0x2581 || code == 0xfeff || code == 0xfffd;
  if (is_space) return ' ';
  const bool is_control = is_in(0x1, 0x8) || code == 0xb || is_in(0xe, 0x1f) || code == 0x7f ||
                          code == 0x8f || code == 0x9f;
  return is_control ? kNoCode : code;
}

Normalizer::Step PrependStep(std::string prefix) {
  return
      [prefix = std::move(prefix)](std::string_view text, std::string* out, size_t* start_bytes) {
        if (text.empty()) return false;
        *out = absl::StrCat(prefix, Absl(text));
        if (*start_bytes > 0) *start_bytes += prefix.size();
        return true;
      };
}

Normalizer::Step ReplaceStep(Splitter pattern, std::string content) {
  // Shared, because a std::function must be copyable.
  const auto shared = std::make_shared<const Splitter>(std::move(pattern));
  return [shared, content = std::move(content)](std::string_view text, std::string* out,
                                                size_t* start_bytes) {
    bool changed = false;
    size_t start = 0;
    for (size_t begin = 0; begin < text.size();) {
      const Splitter::Part part = shared->Next(text, begin);
      changed |= part.is_match;
      const std::string_view in = text.substr(begin, part.end - begin);
      out->append(part.is_match ? std::string_view(content) : in);
      // What replaces a match stands for the last character of it.
      if (!part.is_match && begin < *start_bytes)
        start += std::min(in.size(), *start_bytes - begin);
      if (part.is_match && part.end <= *start_bytes) start += content.size();
      begin = part.end;
    }
    if (changed) *start_bytes = start;
    return changed;
  };
}

Normalizer::Step StripStep(bool left, bool right) {
  return [left, right](std::string_view text, std::string* out, size_t* start_bytes) {
    const size_t front = left ? LeadingSpaceBytes(text) : 0;
    const std::string_view rest = text.substr(front);
    const size_t back = right ? TrailingSpaceBytes(rest) : 0;
    if (front + back == 0) return false;
    *start_bytes -= std::min(front, *start_bytes);
    *out = std::string(rest.substr(0, rest.size() - back));
    return true;
  };
}

}  // namespace terrace::tokenizer_json
