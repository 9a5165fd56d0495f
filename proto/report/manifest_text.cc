// SPDX-License-Identifier: Apache-2.0
#include "proto/report/manifest_text.h"

#include <google/protobuf/util/json_util.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "proto/program/program_hash.h"

namespace terrace {
namespace {

constexpr size_t kDigits = 64;
constexpr int kDepthMax = 64;  // writing JSON recurses

// Where the value begins; npos without one. In a string of the spec the quotes would be escaped.
size_t SealAt(std::string_view text) {
  const std::string key = absl::StrCat("\"", kManifestSealKey, "\": \"");
  const size_t found = text.rfind(key);
  if (found == std::string_view::npos || found + key.size() + kDigits > text.size()) {
    return std::string_view::npos;
  }
  return found + key.size();
}

std::string SumWithout(std::string text, size_t seal) {
  return Sha256Hex(text.replace(seal, kDigits, UnsealedManifest()));
}

}  // namespace

std::string UnsealedManifest() { return std::string(kDigits, '0'); }

std::string SealManifest(std::string text) {
  const size_t seal = SealAt(text);
  if (seal == std::string::npos) return text;
  return text.replace(seal, kDigits, SumWithout(text, seal));
}

absl::Status CheckManifestSeal(std::string_view text) {
  const size_t seal = SealAt(text);
  if (seal == std::string_view::npos) return absl::OkStatus();
  const std::string_view kept = text.substr(seal, kDigits);
  const std::string sum = SumWithout(std::string(text), seal);
  if (kept == sum) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("its checksum is ", sum.substr(0, 16), "..., \"",
                                          kManifestSealKey, "\" says ", Absl(kept.substr(0, 16)),
                                          "..."));
}

std::optional<v1::JobSpec> SpecOfManifest(std::string_view text) {
  bool too_deep = false;
  const auto json = nlohmann::json::parse(
      text,
      [&too_deep](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
        too_deep = too_deep || depth > kDepthMax;
        return !too_deep;
      },
      /*allow_exceptions=*/false);
  if (too_deep || !json.is_object() || !json.contains("spec")) return std::nullopt;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  v1::JobSpec spec;
  const std::string dumped =
      json["spec"].dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (!google::protobuf::util::JsonStringToMessage(dumped, &spec, options).ok()) {
    return std::nullopt;
  }
  return spec;
}

bool HoldsForeignWeights(const std::string& folder) {
  const auto has = [&folder](const char* name) {
    std::error_code error;
    return std::filesystem::exists(std::filesystem::path(folder) / name, error);
  };
  return has("config.json") && !has("manifest.json") && !has("optimizer.safetensors");
}

v1::JobSpec SpecOfForeignWeights() {
  v1::JobSpec spec;
  spec.set_name("weights");
  spec.mutable_data()->set_samples("stream");
  spec.mutable_data()->set_loss_on("all");
  spec.mutable_train()->set_precision("fp32");
  return spec;
}

}  // namespace terrace
