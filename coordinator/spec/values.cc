// SPDX-License-Identifier: Apache-2.0
#include "coordinator/spec/values.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/strings.h"
#include "base/text/duration.h"
#include "base/utf8.h"

namespace terrace {
namespace {

constexpr size_t kMaxShownValue = 60;

// A whole number as people write it: 1000000, not 1e+06.
std::string BoundText(const SpecKey& key, double bound) {
  const bool whole = key.kind != KeyKind::kReal && std::abs(bound) < 1e18;
  return whole ? absl::StrCat(static_cast<int64_t>(bound)) : absl::StrCat(bound);
}

std::string RangeText(const SpecKey& key) {
  const char* what = key.kind == KeyKind::kReal ? "a number" : "a whole number";
  if (key.low == key.high) return BoundText(key, key.low);
  return absl::StrCat(what, " from ", BoundText(key, key.low), " to ", BoundText(key, key.high));
}

}  // namespace

std::string Quoted(const YAML::Node& value) {
  if (value.IsNull()) return "nothing";
  if (value.IsMap()) return "a mapping";
  if (value.IsSequence()) return "a list";
  return absl::StrCat("\"", CleanLine(value.Scalar(), kMaxShownValue), "\"");
}

std::string QuotedEntry(const YAML::Node& item, size_t index) {
  const bool empty = item.IsScalar() && item.Scalar().empty();
  return absl::StrCat(empty ? "nothing" : Quoted(item), " as entry ", index + 1, " of the list");
}

std::optional<double> ParseNumber(std::string text) {
  std::erase(text, '_');
  double value = 0;
  if (text.empty() || !absl::SimpleAtod(text, &value) || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<double> ParseBytes(const std::string& text) {
  static constexpr std::pair<std::string_view, double> kUnits[] = {{"KiB", 1024.0},
                                                                   {"MiB", 1048576.0},
                                                                   {"GiB", 1073741824.0},
                                                                   {"TiB", 1099511627776.0},
                                                                   {"PiB", 1125899906842624.0},
                                                                   {"KB", 1e3},
                                                                   {"MB", 1e6},
                                                                   {"GB", 1e9},
                                                                   {"TB", 1e12},
                                                                   {"PB", 1e15},
                                                                   {"B", 1.0}};
  for (const auto& [unit, factor] : kUnits) {
    if (!absl::EndsWith(text, Absl(unit))) continue;
    std::string number(absl::StripAsciiWhitespace(text.substr(0, text.size() - unit.size())));
    const auto value = ParseNumber(number);
    if (!value) return std::nullopt;
    return std::floor(*value * factor);
  }
  return ParseNumber(text);
}

Field FindField(const SpecKey& key, v1::JobSpec* spec) {
  const std::string_view path = key.field.empty() ? key.path : key.field;
  google::protobuf::Message* message = spec;
  const google::protobuf::FieldDescriptor* descriptor = nullptr;
  for (absl::string_view part : absl::StrSplit(Absl(path), '.')) {
    if (descriptor != nullptr)
      message = message->GetReflection()->MutableMessage(message, descriptor);
    descriptor = message->GetDescriptor()->FindFieldByName(std::string(part));
  }
  return {message, descriptor};
}

void SetNumber(const Field& field, double value) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection* reflection = field.message->GetReflection();
  switch (field.descriptor->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection->SetInt32(field.message, field.descriptor, value);
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection->SetInt64(field.message, field.descriptor, value);
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->SetBool(field.message, field.descriptor, value != 0);
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection->SetUInt32(field.message, field.descriptor, value);
    default:
      return reflection->SetDouble(field.message, field.descriptor, value);
  }
}

void SetString(const Field& field, std::string value) {
  field.message->GetReflection()->SetString(field.message, field.descriptor, std::move(value));
}

std::string RuleText(const SpecKey& key) {
  const std::string choices = absl::StrCat("one of ", absl::StrJoin(ChoicesOf(key), ", "));
  switch (key.kind) {
    case KeyKind::kString:
      return "text";
    case KeyKind::kPath:
      return "a path";
    case KeyKind::kPathOrWord:
      return absl::StrCat("a path or ", choices);
    case KeyKind::kPaths:
      return "a path or a list of paths";
    case KeyKind::kMixture:
      return "a path, a list of paths, or a list of mappings of path and weight";
    case KeyKind::kWords:
      return absl::StrCat("a word of at most ", BoundText(key, key.high),
                          " bytes, or a list of at most ", kWordsMax, " of them");
    case KeyKind::kChoice:
      return choices;
    case KeyKind::kChoices:
      return absl::StrCat("a list, each ", choices);
    case KeyKind::kBoolean:
      return "true or false";
    case KeyKind::kIntegers:
      return absl::StrCat("a list, each ", RangeText(key));
    case KeyKind::kBytes:
      return absl::StrCat("a size of at least ", BoundText(key, key.low), " bytes");
    case KeyKind::kSpan:
      return absl::StrCat("a time such as 90s, 45m, 2h30m or 1d12h, from ",
                          SpanText(static_cast<int64_t>(key.low)), " to ",
                          SpanText(static_cast<int64_t>(key.high)));
    case KeyKind::kBetas:
      return "a list of two numbers, each at least 0 and below 1";
    case KeyKind::kNodes:
      return absl::StrCat("N or MIN:MAX, from ", BoundText(key, key.low), " to ",
                          BoundText(key, key.high));
    case KeyKind::kShares:
      return absl::StrCat(choices, ", or a mapping from them to parts that sum to 1");
    case KeyKind::kPrecision:
      return absl::StrCat(choices, ", or a mapping with default and layers");
    case KeyKind::kGroups:
      return "a mapping from patterns of names to lr_scale, weight_decay, rule or frozen";
    case KeyKind::kModelConfig:
      return "a preset name, a path or a mapping";
    default:
      return RangeText(key);
  }
}

std::vector<absl::string_view> ChoicesOf(const SpecKey& key) {
  std::vector<absl::string_view> choices;
  for (std::string_view choice : key.choices) choices.push_back(Absl(choice));
  return choices;
}

bool IsChoice(const SpecKey& key, std::string_view text) {
  return std::find(key.choices.begin(), key.choices.end(), text) != key.choices.end();
}

bool IsInteger(const SpecKey& key, std::optional<double> number) {
  return number && std::floor(*number) == *number && *number >= key.low && *number <= key.high;
}

std::optional<std::string> RepeatedKey(const YAML::Node& node, const std::string& path) {
  std::set<std::string> keys;
  for (size_t i = 0; node.IsSequence() && i < node.size(); ++i) {
    if (auto found = RepeatedKey(node[i], path)) return found;
  }
  if (!node.IsMap()) return std::nullopt;
  for (const auto& item : node) {
    const std::string child = absl::StrCat(path, ".", item.first.Scalar());
    if (!keys.insert(item.first.Scalar()).second) return child;
    if (auto found = RepeatedKey(item.second, child)) return found;
  }
  return std::nullopt;
}

nlohmann::json ToJson(const YAML::Node& node) {
  if (node.IsMap()) {
    nlohmann::json out = nlohmann::json::object();
    for (const auto& item : node) out[item.first.Scalar()] = ToJson(item.second);
    return out;
  }
  if (node.IsSequence()) {
    nlohmann::json out = nlohmann::json::array();
    for (const auto& item : node) out.push_back(ToJson(item));
    return out;
  }
  if (node.IsNull()) return nullptr;
  const std::string& text = node.Scalar();
  if (node.Tag() == "!") return text;  // quoted
  if (text == "true" || text == "false") return text == "true";
  int64_t whole = 0;
  if (absl::SimpleAtoi(text, &whole)) return whole;
  if (const auto number = ParseNumber(text)) return *number;
  return text;
}

}  // namespace terrace
