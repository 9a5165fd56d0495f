// SPDX-License-Identifier: Apache-2.0
#include "worker/data/tokenizer_json/pattern_dialect.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace terrace::tokenizer_json {
namespace {

// The inside of a class of Unicode's White_Space.
constexpr char kSpaces[] =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
// Escapes that are the same in both, besides those of signs.
constexpr std::string_view kCommonEscapes = "tnrfvaAzx0";

// What a property holds in the library and not yet in RE2, whose Unicode is older: emoji of the
// last years, say. The inside of a class.
struct YoungerCharacters {
  std::string_view property, inside;
};
#include "worker/data/unicode/property_table.inc"

const YoungerCharacters* FindYounger(std::string_view property) {
  const auto found =
      std::find_if(std::begin(kYounger), std::end(kYounger),
                   [property](const YoungerCharacters& row) { return row.property == property; });
  return found == std::end(kYounger) ? nullptr : &*found;
}

absl::Status NotSupported(std::string_view construct) {
  return absl::InvalidArgumentError(absl::StrCat(Absl(construct), " is not supported here"));
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : rest_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (!rest_.empty()) {
      RETURN_IF_ERROR(rest_.front() == '\\' ? Escape() : depth_ > 0 ? InClass() : Outside());
    }
    return std::move(out_);
  }

 private:
  bool Take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  void Copy(size_t count) {
    out_ += rest_.substr(0, count);
    rest_.remove_prefix(count);
  }

  absl::Status Outside() {
    if (rest_.starts_with("(?")) {
      for (const std::string_view same : {"(?:", "(?i:"}) {
        if (!rest_.starts_with(same)) continue;
        Copy(same.size());
        return absl::OkStatus();
      }
      return NotSupported(rest_.substr(0, 4));
    }
    if (Take("{,")) {
      out_ += "{0,";
      return absl::OkStatus();
    }
    if (rest_.front() == '[') return Open();
    Copy(1);
    return absl::OkStatus();
  }

  // A class within a class is their union.
  absl::Status Open() {
    if (depth_ > 0 && rest_.starts_with("[:")) return NotSupported("[:");
    if (depth_ > 0 && rest_.starts_with("[^")) return NotSupported("[^ in a class");
    if (rest_.starts_with("[]") || rest_.starts_with("[^]")) return NotSupported("[]");
    if (depth_++ > 0) {
      rest_.remove_prefix(1);
    } else {
      Copy(rest_.starts_with("[^") ? 2 : 1);
    }
    return absl::OkStatus();
  }

  absl::Status InClass() {
    if (rest_.starts_with("&&")) return NotSupported("&& in a class");
    if (rest_.front() == '[') return Open();
    if (rest_.front() != ']') {
      Copy(1);
    } else if (--depth_ > 0) {
      rest_.remove_prefix(1);
    } else {
      Copy(1);
    }
    return absl::OkStatus();
  }

  // `inside`: of a class.
  void AppendClass(std::string_view inside, bool negated) {
    if (depth_ > 0) {
      out_ += inside;
    } else {
      absl::StrAppend(&out_, negated ? "[^" : "[", Absl(inside), "]");
    }
  }

  void AppendProperty(std::string_view name, bool negated) {
    AppendClass(absl::StrCat("\\p{", Absl(name), "}", Absl(FindYounger(name)->inside)), negated);
  }

  // "\p{L}", "\pL", "\P{L}", "\p{^L}"
  absl::Status Property() {
    const bool braces = rest_.size() > 2 && rest_[2] == '{';
    const size_t close = braces ? rest_.find('}') : std::min<size_t>(2, rest_.size() - 1);
    if (close == std::string_view::npos || close < 2) return NotSupported("a \\p without a name");
    std::string_view name = braces ? rest_.substr(3, close - 3) : rest_.substr(2, 1);
    bool negated = rest_[1] == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    // In a class nothing can be taken away.
    if (FindYounger(name) == nullptr || (negated && depth_ > 0)) {
      out_ += rest_.substr(0, close + 1);
    } else {
      AppendProperty(name, negated);
    }
    rest_.remove_prefix(close + 1);
    return absl::OkStatus();
  }

  absl::Status Escape() {
    if (rest_.size() < 2) return NotSupported("a \\ at the end");
    const char escape = rest_[1];
    if (escape == 'p' || escape == 'P') return Property();
    const std::string_view shown = rest_.substr(0, 2);
    const bool negated = escape == 'S' || escape == 'D';
    if (negated && depth_ > 0) return NotSupported(absl::StrCat(Absl(shown), " in a class"));
    if (escape == 's' || escape == 'S') {
      AppendClass(kSpaces, negated);
    } else if (escape == 'd' || escape == 'D') {
      AppendProperty("Nd", negated);
    } else if (escape == 'u' && rest_.size() >= 6) {
      absl::StrAppend(&out_, "\\x{", Absl(rest_.substr(2, 4)), "}");
      rest_.remove_prefix(6);
      return absl::OkStatus();
    } else if (std::isalnum(static_cast<unsigned char>(escape)) != 0 &&
               kCommonEscapes.find(escape) == std::string_view::npos) {
      return NotSupported(shown);
    } else {
      out_ += shown;
    }
    rest_.remove_prefix(2);
    return absl::OkStatus();
  }

  std::string_view rest_;
  std::string out_;
  int depth_ = 0;  // of classes
};

}  // namespace

std::vector<std::string> TopLevelAlternatives(std::string_view pattern) {
  std::vector<std::string> alternatives(1);
  int groups = 0, classes = 0;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      alternatives.back().append(pattern.substr(i++, 2));
      continue;
    }
    if (c == '[') ++classes;
    if (c == ']' && classes > 0) --classes;
    if (classes == 0 && c == '(') ++groups;
    if (classes == 0 && c == ')') --groups;
    if (classes == 0 && c == '|' && groups == 0) {
      alternatives.emplace_back();
    } else {
      alternatives.back().push_back(c);
    }
  }
  return alternatives;
}

absl::StatusOr<std::string> ToRe2(std::string_view pattern) { return Translator(pattern).Run(); }

}  // namespace terrace::tokenizer_json
