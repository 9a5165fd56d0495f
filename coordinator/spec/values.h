// Values of a spec: what a scalar of the YAML says as a number, a size or a choice, how a value is
// shown in a message, and how it gets into the field of the JobSpec that the key table names.
//
// Pure. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/spec/keys.h"
#include "proto/v1/job.pb.h"

namespace YAML {
class Node;
}

namespace terrace {

// In quotes and cut short; "a mapping", "a list", "nothing".
std::string Quoted(const YAML::Node& value);
// "nothing as entry 2 of the list", of its `index`-th from 0.
std::string QuotedEntry(const YAML::Node& item, size_t index);

// Whole numbers also in the forms 1e6 and 1_000_000 that people write.
std::optional<double> ParseNumber(std::string text);
std::optional<double> ParseBytes(const std::string& text);

// The JobSpec field at a dotted path.
struct Field {
  google::protobuf::Message* message;
  const google::protobuf::FieldDescriptor* descriptor;
};
// That of the key, its sub-message created on the way.
Field FindField(const SpecKey& key, v1::JobSpec* spec);
void SetNumber(const Field& field, double value);
void SetString(const Field& field, std::string value);

// A list has at most so many words.
inline constexpr size_t kWordsMax = 256;

// What a value of the key must be: "a whole number from 1 to 9", "one of bf16, fp32".
std::string RuleText(const SpecKey& key);
std::vector<absl::string_view> ChoicesOf(const SpecKey& key);
bool IsChoice(const SpecKey& key, std::string_view text);
// A whole number in the key's range.
bool IsInteger(const SpecKey& key, std::optional<double> number);

// YAML scalars carry no type: numbers and booleans are what looks like them, unless quoted.
nlohmann::json ToJson(const YAML::Node& node);
// The path, below `path`, of a key that a mapping in `node` has twice.
std::optional<std::string> RepeatedKey(const YAML::Node& node, const std::string& path);

}  // namespace terrace
