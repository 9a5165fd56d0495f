// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/manifest.h"

#include <xxhash.h>

#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace terrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFormat[] = "terrace-checkpoint";
constexpr int64_t kVersion = 1;
constexpr int64_t kLimitBytes = 16 << 20;
constexpr int kMaxDepth = 64;  // writing JSON recurses

uint64_t ParseHash(const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size() || text.size() != 16) {
    throw std::invalid_argument(
        absl::StrCat("\"xxh3\" is \"", text, "\", must be 16 hexadecimal digits"));
  }
  return value;
}

// Throws what nlohmann::json throws; the caller turns it into a status.
Manifest FromJson(const Json& json) {
  Manifest manifest = {.step = json.at("step").get<int64_t>(),
                       .tokens = json.at("tokens").get<int64_t>(),
                       .seed = json.at("seed").get<int64_t>(),
                       .unix_ms = json.at("unix_ms").get<int64_t>(),
                       .job = json.at("job").get<std::string>(),
                       .spec_json = json.at("spec").dump()};
  for (const Json& file : json.at("files")) {
    ManifestFile entry = {.name = file.at("name").get<std::string>(),
                          .bytes = file.at("bytes").get<int64_t>(),
                          .xxh3 = ParseHash(file.at("xxh3").get<std::string>())};
    if (entry.name.empty() || entry.name.find('/') != std::string::npos) {
      throw std::invalid_argument(absl::StrCat("\"", entry.name, "\" is not a plain file name"));
    }
    manifest.files.push_back(std::move(entry));
  }
  return manifest;
}

}  // namespace

std::string PathIn(std::string_view folder, std::string_view name) {
  return (std::filesystem::path(folder) / name).string();
}

absl::StatusOr<ManifestFile> DescribeFile(std::string_view folder, const std::string& name) {
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(PathIn(folder, name)));
  return ManifestFile{.name = name,
                      .bytes = static_cast<int64_t>(file.bytes().size()),
                      .xxh3 = XXH3_64bits(file.bytes().data(), file.bytes().size())};
}

absl::StatusOr<Manifest> ReadManifest(std::string_view folder) {
  const std::string path = PathIn(folder, kManifestName);
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kLimitBytes));
  try {
    const Json json = Json::parse(text, [](int depth, Json::parse_event_t, Json&) {
      if (depth > kMaxDepth) throw std::invalid_argument("it is nested too deeply");
      return true;
    });
    if (json.at("format") != kFormat || json.at("version") != kVersion) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is not a ", kFormat, " of version ", kVersion));
    }
    return FromJson(json);
  } catch (const std::exception& error) {
    return absl::DataLossError(absl::StrCat(path, " is damaged: ", error.what()));
  }
}

absl::Status WriteManifest(std::string_view folder, const Manifest& manifest) {
  Json json = {{"format", kFormat},          {"version", kVersion},       {"job", manifest.job},
               {"step", manifest.step},      {"tokens", manifest.tokens}, {"seed", manifest.seed},
               {"unix_ms", manifest.unix_ms}};
  Json files = Json::array();
  for (const ManifestFile& file : manifest.files) {
    files.push_back({{"name", file.name},
                     {"bytes", file.bytes},
                     {"xxh3", absl::StrFormat("%016x", file.xxh3)}});
  }
  json["files"] = std::move(files);
  json["spec"] = Json::parse(manifest.spec_json, nullptr, /*allow_exceptions=*/false);
  if (!json["spec"].is_object()) json["spec"] = Json::object();
  return WriteSyncedFile(PathIn(folder, kManifestName),
                         json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace terrace
