// SPDX-License-Identifier: Apache-2.0
#include "coordinator/model/json_reader.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/strings.h"

namespace terrace {
namespace {

std::string Shown(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

}  // namespace

JsonReader::JsonReader(const nlohmann::json& object, std::string path,
                       std::vector<std::string>* problems)
    : object_(object), path_(std::move(path)), problems_(problems) {}

const nlohmann::json* JsonReader::Find(std::string_view key) const {
  auto it = object_.find(std::string(key));
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool JsonReader::Has(std::string_view key) const { return Find(key) != nullptr; }

void JsonReader::Problem(std::string_view key, std::string_view got, std::string_view must,
                         std::string_view way_out) {
  std::string text = absl::StrCat(path_, Absl(key), ": got ", Absl(got), ", must be ", Absl(must));
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
    Problem(key, Shown(*value), must);
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
    Problem(key, Shown(*value), must);
    return fallback.value_or(low);
  }
  return value->get<double>();
}

bool JsonReader::Bool(std::string_view key, bool fallback) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    Problem(key, Shown(*value), "true or false");
    return fallback;
  }
  return value->get<bool>();
}

std::string JsonReader::String(std::string_view key, std::string_view fallback) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return std::string(fallback);
  if (!value->is_string()) {
    Problem(key, Shown(*value), "a string");
    return std::string(fallback);
  }
  return value->get<std::string>();
}

std::vector<double> JsonReader::Reals(std::string_view key) {
  std::vector<double> out;
  const nlohmann::json* value = Find(key);
  if (value == nullptr || !value->is_array()) {
    Problem(key, value == nullptr ? "nothing" : Shown(*value), "a list of numbers");
    return out;
  }
  for (const nlohmann::json& element : *value) {
    if (!element.is_number()) {
      Problem(key, Shown(element), "a list of numbers");
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
    Problem(key, Shown(*value), "a list of strings");
    return out;
  }
  for (const nlohmann::json& element : *value) {
    if (!element.is_string()) {
      Problem(key, Shown(element), "a list of strings");
      return {};
    }
    out.push_back(element.get<std::string>());
  }
  return out;
}

const nlohmann::json* JsonReader::Object(std::string_view key) {
  const nlohmann::json* value = Find(key);
  if (value != nullptr && !value->is_object()) {
    Problem(key, Shown(*value), "an object");
    return nullptr;
  }
  return value;
}

}  // namespace terrace
