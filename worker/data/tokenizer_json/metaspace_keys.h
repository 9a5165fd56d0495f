// The keys of a Metaspace, which are the same for pre-tokenizers and decoders.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/data/tokenizer_json/document.h"

namespace terrace::tokenizer_json {

struct MetaspaceKeys {
  std::string replacement;  // of a space
  // Older documents say add_prefix_space where newer ones have a prepend_scheme.
  std::optional<std::string> scheme;
  bool add_prefix_space = true;

  std::string Scheme() const { return scheme.value_or(add_prefix_space ? "always" : "never"); }
};
absl::StatusOr<MetaspaceKeys> ReadMetaspaceKeys(const Json& json, std::string_view where,
                                                Remarks* remarks);

}  // namespace terrace::tokenizer_json
