// SPDX-License-Identifier: Apache-2.0
#include "coordinator/model/json_reader.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/strings.h"

namespace terrace {

std::string ShownJson(const nlohmann::json& value) {
  constexpr size_t kShownBytes = 60;
  // Escaped: all of it is ASCII and may be cut anywhere.
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > kShownBytes) text = text.substr(0, kShownBytes - 3) + "...";
  return text;
}

JsonReader::JsonReader(const nlohmann::json& object, std::string path,
                       std::vector<std::string>* problems)
    : object_(object), path_(std::move(path)), problems_(problems) {}

void JsonReader::Alias(std::string_view key, std::string_view alias) {
  const nlohmann::json* value = Find(key);
  const nlohmann::json* other = Find(alias);
  if (other == nullptr) return;
  if (value == nullptr) {
    aliases_.emplace(key, alias);
  } else if (*value != *other) {
    Problem(alias, ShownJson(*other),
            absl::StrCat(ShownJson(*value), ", as ", Absl(key), " is: both name one number"),
            "leave one of them out");
  }
}

std::string JsonReader::Written(std::string_view key) const {
  const auto alias = aliases_.find(key);
  return alias == aliases_.end() ? std::string(key) : alias->second;
}

const nlohmann::json* JsonReader::Find(std::string_view key) const {
  asked_.emplace(key);
  auto it = object_.find(Written(key));
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool JsonReader::Has(std::string_view key) const { return Find(key) != nullptr; }

bool JsonReader::Contains(std::string_view key) const {
  asked_.emplace(key);
  return object_.contains(Written(key));
}

std::vector<std::string> JsonReader::NotAsked() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object_.items()) {
    if (!asked_.contains(key)) keys.push_back(key);
  }
  return keys;
}

void JsonReader::Problem(std::string_view key, std::string_view got, std::string_view must,
                         std::string_view way_out) {
  const std::string place = absl::StrCat(path_, Written(key), ": got ");
  // What is asked for twice, or follows from what is missing, is one problem.
  for (const std::string& said : *problems_) {
    if (said.starts_with(place)) return;
  }
  std::string text = absl::StrCat(place, Absl(got), ", must be ", Absl(must));
  if (!way_out.empty()) absl::StrAppend(&text, "; ", Absl(way_out));
  problems_->push_back(std::move(text));
}

int64_t JsonReader::Int(std::string_view key, int64_t low, int64_t high,
                        std::optional<int64_t> fallback) {
  const nlohmann::json* value = Find(key);
  const std::string must = absl::StrCat("a whole number from ", low, " to ", high);
  if (value == nullptr) {
    if (!fallback) Problem(key, "nothing", must);
    return fallback.value_or(low);
  }
  const bool whole = value->is_number_integer() &&
                     !(value->is_number_unsigned() && value->get<uint64_t>() > uint64_t{INT64_MAX});
  if (!whole || value->get<int64_t>() < low || value->get<int64_t>() > high) {
    Problem(key, ShownJson(*value), must);
    return fallback.value_or(low);
  }
  return value->get<int64_t>();
}

double JsonReader::Real(std::string_view key, double low, double high,
                        std::optional<double> fallback) {
  const nlohmann::json* value = Find(key);
  const std::string must = absl::StrCat("a number from ", low, " to ", high);
  if (value == nullptr) {
    if (!fallback) Problem(key, "nothing", must);
    return fallback.value_or(low);
  }
  if (!value->is_number() || !(value->get<double>() >= low && value->get<double>() <= high)) {
    Problem(key, ShownJson(*value), must);
    return fallback.value_or(low);
  }
  return value->get<double>();
}

bool JsonReader::Bool(std::string_view key, bool fallback) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    Problem(key, ShownJson(*value), "true or false");
    return fallback;
  }
  return value->get<bool>();
}

std::string JsonReader::String(std::string_view key, std::string_view fallback) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string()) {
    Problem(key, ShownJson(*value), "a string");
    return std::string(fallback);
  }
  return value->get<std::string>();
}

std::vector<double> JsonReader::Reals(std::string_view key) {
  std::vector<double> out;
  const nlohmann::json* value = Find(key);
  if (value == nullptr || !value->is_array()) {
    Problem(key, value == nullptr ? "nothing" : ShownJson(*value), "a list of numbers");
    return out;
  }
  for (const nlohmann::json& element : *value) {
    if (!element.is_number()) {
      Problem(key, ShownJson(element), "a list of numbers");
      return {};
    }
    out.push_back(element.get<double>());
  }
  return out;
}

std::vector<std::string> JsonReader::Strings(std::string_view key) {
  std::vector<std::string> out;
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return out;
  if (!value->is_array()) {
    Problem(key, ShownJson(*value), "a list of strings");
    return out;
  }
  for (const nlohmann::json& element : *value) {
    if (!element.is_string()) {
      Problem(key, ShownJson(element), "a list of strings");
      return {};
    }
    out.push_back(element.get<std::string>());
  }
  return out;
}

const nlohmann::json* JsonReader::Object(std::string_view key) {
  const nlohmann::json* value = Find(key);
  if (value != nullptr && !value->is_object()) {
    Problem(key, ShownJson(*value), "an object");
    return nullptr;
  }
  return value;
}

}  // namespace terrace
