// SPDX-License-Identifier: Apache-2.0
#include "worker/data/tokenizer_json/pattern.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace terrace::tokenizer_json {

absl::StatusOr<Splitter> ReadPattern(const Json& step, std::string_view where) {
  const std::string name = absl::StrCat(Absl(where), ".pattern");
  const Json& pattern = Member(step, "pattern");
  ASSIGN_OR_RETURN(const std::optional<std::string> regex, StringMember(pattern, "Regex", name));
  ASSIGN_OR_RETURN(const std::optional<std::string> literal, StringMember(pattern, "String", name));
  if (regex.has_value() == literal.has_value() || (regex.has_value() ? *regex : *literal).empty()) {
    return Unsupported(name, "something else", "one Regex or String that is not empty");
  }
  return regex.has_value() ? Splitter::Create(*regex) : Splitter::Literal(*literal);
}

}  // namespace terrace::tokenizer_json
