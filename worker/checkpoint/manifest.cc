// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/manifest.h"

#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "proto/report/manifest_text.h"
#include "worker/checkpoint/safetensors/file_reader.h"
#include "worker/checkpoint/safetensors/file_sum.h"

namespace terrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFormat[] = "terrace-checkpoint";
constexpr int64_t kVersion = 2;  // 1 knew "xxh3" alone; it is read as well
constexpr int64_t kOldestVersion = 1;
constexpr int kMaxDepth = 64;  // writing JSON recurses
constexpr size_t kReadBytes = size_t{1} << 20;

struct FreeHash {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

const char* KeyOf(Checksum::Kind kind) { return kind == Checksum::kXxh3 ? "xxh3" : "sum64"; }

uint64_t ParseHash(const char* key, const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size() || text.size() != 16) {
    throw std::invalid_argument(
        absl::StrCat("\"", key, "\" is \"", text, "\", must be 16 hexadecimal digits"));
  }
  return value;
}

bool KnowsVersion(const Json& version) {
  return version.is_number_integer() && version >= kOldestVersion && version <= kVersion;
}

Checksum ParseChecksum(const Json& file) {
  const Checksum::Kind kind = file.contains("sum64") ? Checksum::kSum64 : Checksum::kXxh3;
  return {kind, ParseHash(KeyOf(kind), file.at(KeyOf(kind)).get<std::string>())};
}

LossScaleState ParseLossScale(const Json& json) {
  LossScaleState state = {.scale = json.at("scale").get<double>(),
                          .good_steps = json.at("good_steps").get<int64_t>(),
                          .hysteresis = json.at("hysteresis").get<int64_t>(),
                          .skipped = json.at("skipped").get<int64_t>()};
  if (!(state.scale > 0) || state.good_steps < 0 || state.hysteresis < 0 || state.skipped < 0) {
    throw std::invalid_argument(
        "\"loss_scale\" has a scale that is not positive, or a count below 0");
  }
  return state;
}

ValidationState ParseValidation(const Json& json) {
  ValidationState state = {.best_step = json.at("best_step").get<int64_t>(),
                           .best_loss = json.at("best_loss").get<double>(),
                           .worse = json.at("worse").get<int64_t>()};
  if (state.best_step < 0 || !std::isfinite(state.best_loss) || state.worse < 0)
    throw std::invalid_argument("\"validation\" has a loss that is not finite, or a count below 0");
  return state;
}

TokenSum ParseTokenSum(const Json& data, const char* key) {
  if (!data.contains(key)) return {};
  const Json& json = data.at(key);
  return {json.at("tokens").get<int64_t>(), ParseHash("xxh3", json.at("xxh3").get<std::string>())};
}

Json ToJson(const TokenSum& sum) {
  return {{"tokens", sum.tokens}, {"xxh3", absl::StrFormat("%016x", sum.hash)}};
}

// Throws what nlohmann::json throws; the caller turns it into a status.
Manifest FromJson(const Json& json) {
  Manifest manifest = {.step = json.at("step").get<int64_t>(),
                       .tokens = json.at("tokens").get<int64_t>(),
                       .seed = json.at("seed").get<int64_t>(),
                       .unix_ms = json.at("unix_ms").get<int64_t>(),
                       .job = json.at("job").get<std::string>(),
                       .spec_json = json.at("spec").dump()};
  if (json.contains("data")) {
    const Json& data = json.at("data");
    manifest.data = {ParseTokenSum(data, "train"), ParseTokenSum(data, "validation")};
    if (data.contains("sources"))
      manifest.data.sources = data.at("sources").get<std::vector<int64_t>>();
  }
  if (json.contains("loss_scale"))
    manifest.training.loss_scale = ParseLossScale(json.at("loss_scale"));
  if (json.contains("validation"))
    manifest.training.validation = ParseValidation(json.at("validation"));
  for (const Json& file : json.at("files")) {
    ManifestFile entry = {.name = file.at("name").get<std::string>(),
                          .bytes = file.at("bytes").get<int64_t>(),
                          .checksum = ParseChecksum(file)};
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

std::string Describe(const Checksum& checksum) {
  return absl::StrFormat("%s %016x", KeyOf(checksum.kind), checksum.value);
}

absl::StatusOr<ManifestFile> DescribeFile(std::string_view folder, const std::string& name,
                                          Checksum::Kind kind) {
  ASSIGN_OR_RETURN(const FileReader file, FileReader::Open(PathIn(folder, name)));
  std::vector<std::byte> buffer(kReadBytes);
  const std::unique_ptr<XXH3_state_t, FreeHash> xxh3(XXH3_createState());
  XXH3_64bits_reset(xxh3.get());
  uint64_t sum = 0;
  for (int64_t offset = 0; offset < file.bytes();) {
    const auto part =
        std::span(buffer).first(std::min<int64_t>(buffer.size(), file.bytes() - offset));
    RETURN_IF_ERROR(file.Read(offset, part));
    if (kind == Checksum::kXxh3) {
      XXH3_64bits_update(xxh3.get(), part.data(), part.size());
    } else {
      sum += SumOfPart(offset, part);
    }
    offset += part.size();
  }
  if (kind == Checksum::kXxh3) sum = XXH3_64bits_digest(xxh3.get());
  return ManifestFile{.name = name, .bytes = file.bytes(), .checksum = {kind, sum}};
}

absl::StatusOr<Manifest> ReadManifest(std::string_view folder) {
  const std::string path = PathIn(folder, kManifestName);
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kManifestBytesMax));
  try {
    const Json json = Json::parse(text, [](int depth, Json::parse_event_t, Json&) {
      if (depth > kMaxDepth) throw std::invalid_argument("it is nested too deeply");
      return true;
    });
    if (json.at("format") != kFormat || !KnowsVersion(json.at("version"))) {
      return absl::InvalidArgumentError(absl::StrCat(path, " is not a ", kFormat, " of version ",
                                                     kOldestVersion, " to ", kVersion));
    }
    const absl::Status sealed = CheckManifestSeal(text);
    if (!sealed.ok()) {
      return absl::DataLossError(absl::StrCat(path, " is damaged: ", sealed.message()));
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
  if (const LossScaleState& state = manifest.training.loss_scale; state.scale > 0) {
    json["loss_scale"] = {{"scale", state.scale},
                          {"good_steps", state.good_steps},
                          {"hysteresis", state.hysteresis},
                          {"skipped", state.skipped}};
  }
  if (const ValidationState& state = manifest.training.validation; state != ValidationState()) {
    json["validation"] = {
        {"best_step", state.best_step}, {"best_loss", state.best_loss}, {"worse", state.worse}};
  }
  if (manifest.data.train.tokens > 0) json["data"]["train"] = ToJson(manifest.data.train);
  if (manifest.data.validation.tokens > 0)
    json["data"]["validation"] = ToJson(manifest.data.validation);
  if (!manifest.data.sources.empty()) json["data"]["sources"] = manifest.data.sources;
  Json files = Json::array();
  for (const ManifestFile& file : manifest.files) {
    files.push_back({{"name", file.name},
                     {"bytes", file.bytes},
                     {KeyOf(file.checksum.kind), absl::StrFormat("%016x", file.checksum.value)}});
  }
  json["files"] = std::move(files);
  json["spec"] = Json::parse(manifest.spec_json, nullptr, /*allow_exceptions=*/false);
  if (!json["spec"].is_object()) json["spec"] = Json::object();
  json[kManifestSealKey] = UnsealedManifest();
  return WriteSyncedFile(
      PathIn(folder, kManifestName),
      SealManifest(json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"));
}

}  // namespace terrace
