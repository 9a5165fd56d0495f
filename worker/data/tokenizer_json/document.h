// Reading a tokenizer.json without guessing: a member of the wrong type is an error that names it,
// an unknown one is remarked on.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace::tokenizer_json {

using Json = nlohmann::json;

// Ids are below this.
inline constexpr int64_t kVocabularyLimit = 1 << 24;

// Sentences about parts of a document that change nothing here; they belong into a log.
using Remarks = std::vector<std::string>;

// INVALID_ARGUMENT "<key> is <value>, must be <rule>".
absl::Status Unsupported(std::string_view key, std::string_view value, std::string_view rule);

// The member `key`; null when it is missing or `object` is none.
const Json& Member(const Json& object, const char* key);

// "null", the member "type", or "without a type".
std::string TypeOf(const Json& object);

// A member that may be missing or null, then `otherwise`. `where` names the object in errors.
absl::StatusOr<bool> BoolMember(const Json& object, const char* key, bool otherwise,
                                std::string_view where);
absl::StatusOr<std::optional<std::string>> StringMember(const Json& object, const char* key,
                                                        std::string_view where);
// A number or a list that must be there.
absl::StatusOr<int64_t> IntMember(const Json& object, const char* key, std::string_view where);
absl::StatusOr<const Json*> ListMember(const Json& object, const char* key, std::string_view where);
absl::StatusOr<int32_t> IdOf(const Json& value, std::string_view token);

// Remarks on each key of `object` that is not among `known`.
void RemarkUnknownKeys(const Json& object, std::string_view where,
                       const std::vector<std::string_view>& known, Remarks* remarks);

}  // namespace terrace::tokenizer_json
