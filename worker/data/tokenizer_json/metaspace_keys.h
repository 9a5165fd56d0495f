// The keys of a Metaspace, which are the same for pre-tokenizers and decoders. What the tokenizers
// library refuses in them is refused here.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/data/tokenizer_json/document.h"

namespace terrace::tokenizer_json {

struct MetaspaceKeys {
  std::string replacement;  // of a space: one character
  std::string scheme;       // when a text gets one in front: always, first or never
};
absl::StatusOr<MetaspaceKeys> ReadMetaspaceKeys(const Json& json, std::string_view where,
                                                Remarks* remarks);

}  // namespace terrace::tokenizer_json
