// A file of JSON that lies beside a tokenizer, such as tokenizer_config.json.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace {

// The object in it; null when there is no such file; a link that leads nowhere is one that should
// be there. Appends a sentence for a log about each key that stands twice. INVALID_ARGUMENT names
// a file that holds no object.
absl::StatusOr<nlohmann::json> ReadJsonBeside(const std::string& folder, const char* name,
                                              std::vector<std::string>* remarks);

}  // namespace terrace
