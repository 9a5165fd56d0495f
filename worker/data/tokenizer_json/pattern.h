// A "pattern" of a tokenizer.json: {"Regex": "..."} or {"String": "..."}.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "worker/data/tokenizer_json/document.h"
#include "worker/data/tokenizer_json/splitter.h"

namespace terrace::tokenizer_json {

// `where` names the step that it belongs to.
absl::StatusOr<Splitter> ReadPattern(const Json& step, std::string_view where);

}  // namespace terrace::tokenizer_json
