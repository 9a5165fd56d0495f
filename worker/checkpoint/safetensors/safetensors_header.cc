// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/safetensors/safetensors_header.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace terrace {
namespace {

using Json = nlohmann::json;
using kernels::DType;

constexpr int64_t kMaxElements = int64_t{1} << 50;
constexpr size_t kMaxDims = 16;

struct KnownType {
  std::string_view name;
  int64_t bytes;
  std::optional<DType> dtype;
};
constexpr KnownType kTypes[] = {
    {"F32", 4, DType::kF32},   {"BF16", 2, DType::kBF16},    {"F16", 2, DType::kF16},
    {"I32", 4, DType::kI32},   {"I64", 8, DType::kI64},      {"U8", 1, DType::kU8},
    {"F64", 8, std::nullopt},  {"U64", 8, std::nullopt},     {"U32", 4, std::nullopt},
    {"I16", 2, std::nullopt},  {"U16", 2, std::nullopt},     {"I8", 1, std::nullopt},
    {"BOOL", 1, std::nullopt}, {"F8_E4M3", 1, std::nullopt}, {"F8_E5M2", 1, std::nullopt}};

const KnownType* FindType(std::string_view name) {
  const auto* found = std::find_if(std::begin(kTypes), std::end(kTypes),
                                   [&](const KnownType& type) { return type.name == name; });
  return found == std::end(kTypes) ? nullptr : found;
}

// JSON with every key once. nlohmann::json keeps the last of two equal keys, which is how a file
// could show one tensor to us and another to the next reader.
absl::StatusOr<Json> ParseWithUniqueKeys(std::string_view text) {
  std::vector<std::set<std::string>> open_objects;
  std::optional<std::string> duplicate;
  const auto watch = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == Json::parse_event_t::object_end) open_objects.pop_back();
    if (event == Json::parse_event_t::key &&
        !open_objects.back().insert(parsed.get<std::string>()).second) {
      duplicate = parsed.get<std::string>();
    }
    return true;
  };
  try {
    Json json = Json::parse(text, watch);
    if (duplicate) {
      return absl::InvalidArgumentError(absl::StrCat("the key \"", *duplicate, "\" appears twice"));
    }
    if (!json.is_object()) return absl::InvalidArgumentError("the header is not a JSON object");
    return json;
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("the header is not valid JSON: ", error.what()));
  }
}

absl::StatusOr<int64_t> CountOf(const Json& value, std::string_view what) {
  const bool fits =
      value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{kMaxElements} * 8;
  if (!fits) {
    return absl::InvalidArgumentError(
        absl::StrCat(Absl(what), " has ", value.is_number() ? value.dump() : value.type_name(),
                     ", must be a whole number from 0 on"));
  }
  return value.get<int64_t>();
}

absl::StatusOr<std::vector<int64_t>> CountsOf(const Json& object, const char* key, size_t limit) {
  const auto list = object.find(key);
  if (list == object.end() || !list->is_array() || list->size() > limit) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", key, "\" must be a list of at most ", limit, " numbers"));
  }
  std::vector<int64_t> counts;
  for (const Json& value : *list) {
    ASSIGN_OR_RETURN(const int64_t count, CountOf(value, absl::StrCat("\"", key, "\"")));
    counts.push_back(count);
  }
  return counts;
}

absl::Status CheckSize(const SafetensorsEntry& entry, int64_t element_bytes) {
  int64_t elements = 1;
  for (const int64_t size : entry.shape) {
    if (size != 0 && elements > kMaxElements / size) {
      return absl::InvalidArgumentError("its shape is too large");
    }
    elements *= size;
  }
  if (elements * element_bytes == entry.end - entry.begin) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("its shape and ", entry.stored_dtype, " take ", elements * element_bytes,
                   " bytes, but data_offsets span ", entry.end - entry.begin));
}

absl::StatusOr<SafetensorsEntry> ParseEntry(const std::string& name, const Json& object,
                                            int64_t data_bytes) {
  if (!object.is_object()) return absl::InvalidArgumentError("it is not a JSON object");
  SafetensorsEntry entry;
  entry.name = name;
  const auto dtype = object.find("dtype");
  if (dtype == object.end() || !dtype->is_string()) {
    return absl::InvalidArgumentError("\"dtype\" must be a string");
  }
  entry.stored_dtype = dtype->get<std::string>();
  ASSIGN_OR_RETURN(entry.shape, CountsOf(object, "shape", kMaxDims));
  ASSIGN_OR_RETURN(const std::vector<int64_t> offsets, CountsOf(object, "data_offsets", 2));
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    return absl::InvalidArgumentError(
        "\"data_offsets\" must be two numbers, the first not above the second");
  }
  entry.begin = offsets[0];
  entry.end = offsets[1];
  if (entry.end > data_bytes) {
    return absl::DataLossError(absl::StrCat("it ends at byte ", entry.end,
                                            " of the data, but the file holds only ", data_bytes,
                                            "; was it cut off?"));
  }
  if (const KnownType* type = FindType(entry.stored_dtype)) {
    entry.dtype = type->dtype;
    RETURN_IF_ERROR(CheckSize(entry, type->bytes));
  }
  return entry;
}

absl::Status Prefixed(const absl::Status& status, std::string_view prefix) {
  return absl::Status(status.code(), absl::StrCat(Absl(prefix), status.message()));
}

// The format allows neither holes nor overlaps nor bytes behind the last tensor.
absl::Status CheckContiguous(const std::vector<SafetensorsEntry>& entries, int64_t data_bytes,
                             std::string_view path) {
  int64_t next = 0;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != next) {
      return absl::InvalidArgumentError(absl::StrCat(
          Absl(path), ": tensor ", entry.name, " begins at byte ", entry.begin, ", must be ", next,
          entry.begin < next ? " (it overlaps the one before)" : " (a hole)"));
    }
    next = entry.end;
  }
  if (next == data_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Absl(path), " has ", data_bytes - next, " bytes behind the last tensor"));
}

absl::StatusOr<std::map<std::string, std::string>> ParseMetadata(const Json& json,
                                                                 std::string_view path) {
  std::map<std::string, std::string> metadata;
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Absl(path), ": __metadata__ is not a JSON object"));
  }
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat(Absl(path), ": __metadata__ \"", key, "\" is not a string"));
    }
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

}  // namespace

absl::StatusOr<int64_t> SafetensorsHeaderBytes(std::span<const std::byte> beginning,
                                               int64_t file_bytes, std::string_view path) {
  uint64_t length = 0;
  static_assert(sizeof(length) == kSafetensorsPrefixBytes);
  if (beginning.size() < sizeof(length)) {
    return absl::DataLossError(
        absl::StrCat(Absl(path), " has ", file_bytes, " bytes, too few for safetensors"));
  }
  std::memcpy(&length, beginning.data(), sizeof(length));
  if (length > kSafetensorsHeaderLimitBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        Absl(path), " announces a header of ", length, " bytes, more than the limit of ",
        kSafetensorsHeaderLimitBytes, "; it is not a safetensors file"));
  }
  if (length > file_bytes - sizeof(length)) {
    return absl::DataLossError(absl::StrCat(Absl(path), " announces a header of ", length,
                                            " bytes but has only ", file_bytes,
                                            " bytes in all; was it cut off?"));
  }
  return static_cast<int64_t>(sizeof(length) + length);
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::span<const std::byte> beginning,
                                                         int64_t file_bytes,
                                                         std::string_view path) {
  SafetensorsHeader header;
  ASSIGN_OR_RETURN(header.data_offset, SafetensorsHeaderBytes(beginning, file_bytes, path));
  const std::string_view text(
      reinterpret_cast<const char*>(beginning.data()) + kSafetensorsPrefixBytes,
      header.data_offset - kSafetensorsPrefixBytes);
  absl::StatusOr<Json> json = ParseWithUniqueKeys(text);
  if (!json.ok()) return Prefixed(json.status(), absl::StrCat(Absl(path), ": "));
  const int64_t data_bytes = file_bytes - header.data_offset;
  for (const auto& [name, value] : json->items()) {
    if (name == "__metadata__") {
      ASSIGN_OR_RETURN(header.metadata, ParseMetadata(value, path));
      continue;
    }
    absl::StatusOr<SafetensorsEntry> entry = ParseEntry(name, value, data_bytes);
    if (!entry.ok()) {
      return Prefixed(entry.status(), absl::StrCat(Absl(path), ": tensor ", name, ": "));
    }
    header.entries.push_back(*std::move(entry));
  }
  std::sort(header.entries.begin(), header.entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
            });
  RETURN_IF_ERROR(CheckContiguous(header.entries, data_bytes, path));
  return header;
}

std::string_view SafetensorsDtypeName(DType dtype) {
  for (const KnownType& type : kTypes) {
    if (type.dtype == dtype) return type.name;
  }
  return "";
}

}  // namespace terrace
