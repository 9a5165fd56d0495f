// SPDX-License-Identifier: Apache-2.0
#include "worker/data/tokenizer_json/document.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/nearest.h"
#include "base/strings.h"

namespace terrace::tokenizer_json {
namespace {

constexpr size_t kShownBytes = 60;

// A value as it stands in the file, short enough for a message.
std::string Shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kShownBytes) text = text.substr(0, kShownBytes) + "...";
  return text;
}

std::string NameOf(std::string_view where, std::string_view key) {
  return where.empty() ? std::string(key) : absl::StrCat(Absl(where), ".", Absl(key));
}

}  // namespace

absl::Status Unsupported(std::string_view key, std::string_view value, std::string_view rule) {
  return absl::InvalidArgumentError(
      absl::StrCat(Absl(key), " is ", Absl(value), ", must be ", Absl(rule)));
}

const Json& Member(const Json& object, const char* key) {
  static const Json null;
  if (!object.is_object()) return null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

std::string TypeOf(const Json& object) {
  if (object.is_null()) return "null";
  const Json& type = Member(object, "type");
  return type.is_string() ? type.get<std::string>() : std::string("without a type");
}

absl::StatusOr<bool> BoolMember(const Json& object, const char* key, bool otherwise,
                                std::string_view where) {
  const Json& value = Member(object, key);
  if (value.is_null()) return otherwise;
  if (!value.is_boolean()) return Unsupported(NameOf(where, key), Shown(value), "true or false");
  return value.get<bool>();
}

absl::StatusOr<std::optional<std::string>> StringMember(const Json& object, const char* key,
                                                        std::string_view where) {
  const Json& value = Member(object, key);
  if (value.is_null()) return std::nullopt;
  if (!value.is_string()) return Unsupported(NameOf(where, key), Shown(value), "a text or null");
  return value.get<std::string>();
}

absl::StatusOr<int64_t> IntMember(const Json& object, const char* key, std::string_view where) {
  const Json& value = Member(object, key);
  if (!value.is_number_integer()) {
    return Unsupported(NameOf(where, key), Shown(value), "a whole number");
  }
  return value.get<int64_t>();
}

absl::StatusOr<const Json*> ListMember(const Json& object, const char* key,
                                       std::string_view where) {
  const Json& value = Member(object, key);
  if (!value.is_array()) return Unsupported(NameOf(where, key), Shown(value), "a list");
  return &value;
}

absl::StatusOr<int32_t> IdOf(const Json& value, std::string_view token) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() >= uint64_t{kVocabularyLimit}) {
    return absl::InvalidArgumentError(
        absl::StrCat("the id of ", Absl(token), " must be a number below ", kVocabularyLimit));
  }
  return value.get<int32_t>();
}

void RemarkUnknownKeys(const Json& object, std::string_view where,
                       const std::vector<std::string_view>& known, Remarks* remarks) {
  if (!object.is_object()) return;
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string_view nearest = Nearest(key, known);
    remarks->push_back(absl::StrCat(
        NameOf(where, key), " is no key of the format and changes nothing",
        nearest.empty() ? std::string() : absl::StrCat("; did you mean ", Absl(nearest), "?")));
  }
}

}  // namespace terrace::tokenizer_json
