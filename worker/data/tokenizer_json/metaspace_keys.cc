// SPDX-License-Identifier: Apache-2.0
#include "worker/data/tokenizer_json/metaspace_keys.h"

#include "base/status_macros.h"

namespace terrace::tokenizer_json {

absl::StatusOr<MetaspaceKeys> ReadMetaspaceKeys(const Json& json, std::string_view where,
                                                Remarks* remarks) {
  RemarkUnknownKeys(
      json, where,
      {"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"}, remarks);
  MetaspaceKeys keys;
  ASSIGN_OR_RETURN(const std::optional<std::string> replacement,
                   StringMember(json, "replacement", where));
  keys.replacement = replacement.value_or("\u2581");
  ASSIGN_OR_RETURN(keys.scheme, StringMember(json, "prepend_scheme", where));
  ASSIGN_OR_RETURN(keys.add_prefix_space, BoolMember(json, "add_prefix_space", true, where));
  return keys;
}

}  // namespace terrace::tokenizer_json
