// SPDX-License-Identifier: Apache-2.0
#include "worker/data/tokenizer_json/normalizer_steps.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "worker/data/characters.h"
#include "worker/data/nfc.h"

namespace terrace::tokenizer_json {

Normalizer::Step NfcStep() {
  return [](std::string_view text, std::string* out, size_t* start_bytes) {
    if (IsSurelyNfc(text)) return false;
    *out = NormalizeNfc(text);
    *start_bytes = std::min(NormalizeNfc(text.substr(0, *start_bytes)).size(), out->size());
    return true;
  };
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
