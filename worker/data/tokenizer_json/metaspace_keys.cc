// SPDX-License-Identifier: Apache-2.0
#include "worker/data/tokenizer_json/metaspace_keys.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/data/characters.h"

namespace terrace::tokenizer_json {
namespace {

absl::StatusOr<std::string> ReadReplacement(const Json& json, std::string_view where) {
  ASSIGN_OR_RETURN(const std::optional<std::string> replacement,
                   StringMember(json, "replacement", where));
  const std::string key = absl::StrCat(Absl(where), ".replacement");
  if (!replacement) return Unsupported(key, "not there", "one character");
  if (replacement->empty()) return Unsupported(key, "empty", "one character");
  if (CharacterBytes(*replacement) != replacement->size())
    return Unsupported(key, *replacement, "one character");
  return *replacement;
}

}  // namespace

absl::StatusOr<MetaspaceKeys> ReadMetaspaceKeys(const Json& json, std::string_view where,
                                                Remarks* remarks) {
  RemarkUnknownKeys(
      json, where,
      {"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"}, remarks);
  MetaspaceKeys keys;
  ASSIGN_OR_RETURN(keys.replacement, ReadReplacement(json, where));
  ASSIGN_OR_RETURN(const std::optional<std::string> scheme,
                   StringMember(json, "prepend_scheme", where));
  if (!scheme && json.contains("prepend_scheme")) {
    return Unsupported(absl::StrCat(Absl(where), ".prepend_scheme"), "null",
                       "always, first or never, or left out, which is always");
  }
  keys.scheme = scheme.value_or("always");
  if (keys.scheme != "always" && keys.scheme != "first" && keys.scheme != "never") {
    return Unsupported(absl::StrCat(Absl(where), ".prepend_scheme"), keys.scheme,
                       "always, first or never");
  }
  // Of older documents; true says nothing beside a scheme.
  ASSIGN_OR_RETURN(const bool add_prefix_space, BoolMember(json, "add_prefix_space", true, where));
  if (!add_prefix_space && keys.scheme != "never") {
    return Unsupported(absl::StrCat(Absl(where), ".add_prefix_space"), "false",
                       absl::StrCat("true or left out where prepend_scheme is ",
                                    scheme ? "" : "left out, which is ", keys.scheme,
                                    "; give prepend_scheme never to prepend nothing"));
  }
  return keys;
}

}  // namespace terrace::tokenizer_json
