// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/deepspeed.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/nearest.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "coordinator/import/deepspeed_defaults.h"
#include "coordinator/import/deepspeed_keys.h"
#include "coordinator/import/deepspeed_kind.h"
#include "coordinator/import/deepspeed_mappings.h"
#include "coordinator/import/deepspeed_precision.h"
#include "coordinator/import/deepspeed_values.h"
#include "coordinator/import/hjson.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

// Deeper or longer than any configuration that means something.
constexpr int kDepthMax = 8;
constexpr size_t kKeysMax = 2000;
constexpr int64_t kCountMax = 1'000'000;  // of batch sizes: their product stays a number

absl::Status Flatten(const Json& node, const std::string& path, int depth,
                     std::vector<DeepSpeedSetting>* settings) {
  if (depth > kDepthMax || settings->size() > kKeysMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the configuration is nested deeper than ", kDepthMax,
                     " or has more than ", kKeysMax, " keys"));
  }
  if (!node.is_object()) {
    settings->push_back({path, node});
    return absl::OkStatus();
  }
  for (const auto& [key, value] : node.items()) {
    RETURN_IF_ERROR(
        Flatten(value, path.empty() ? key : absl::StrCat(path, ".", key), depth + 1, settings));
  }
  return absl::OkStatus();
}

class Importer {
 public:
  Importer(const Json& config, const ImportContext& context) : config_(config), context_(context) {}

  absl::StatusOr<SpecDraft> Run() {
    RETURN_IF_ERROR(CheckDeprecated());
    RETURN_IF_ERROR(SetDeepSpeedPrecision(config_, &draft_));
    std::vector<DeepSpeedSetting> settings;
    RETURN_IF_ERROR(Flatten(config_, "", 0, &settings));
    for (const DeepSpeedSetting& setting : settings) RETURN_IF_ERROR(Import(setting));
    RETURN_IF_ERROR(SetBatch());
    SetDeepSpeedDefaults(config_, &draft_);
    Complete(context_, &draft_);
    return std::move(draft_);
  }

 private:
  absl::Status Import(const DeepSpeedSetting& setting) {
    if (IsPrecisionKey(setting.path)) return absl::OkStatus();
    const DeepSpeedKind kind = KindOf(setting.path);
    const bool left_out = IsAuto(setting.value) || setting.value.is_null();
    if (kind.never_was != nullptr) return Unknown(setting, std::string(kind.never_was->note));
    if (kind.section && (left_out || setting.value == false)) {
      draft_.Automatic(setting.path, setting.value.dump(), "off");
    } else if (kind.section && kind.mapping == nullptr && kind.known == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(setting.path, ": got ", setting.value.dump(),
                                                     ", must be an object, as DeepSpeed demands",
                                                     "; try ", SectionExample(setting.path)));
    } else if (left_out && (kind.mapping != nullptr || kind.known != nullptr || kind.parameter)) {
      draft_.Automatic(setting.path, IsAuto(setting.value) ? "auto" : "null",
                       "left to the planner or the default");
    } else if (kind.mapping != nullptr) {
      return Map(setting, kind.mapping);
    } else if (kind.known != nullptr) {
      Known(setting, *kind.known);
    } else if (kind.parameter) {
      draft_.Absent(setting.path, setting.value.dump(),
                    "the optimizers and schedules here have no such parameter");
    } else {
      return Unknown(setting, Suggestion(setting.path));
    }
    return absl::OkStatus();
  }

  absl::Status Map(const DeepSpeedSetting& setting, DeepSpeedMapping mapping) {
    std::string must_be;
    try {
      mapping({setting, config_, &draft_, &must_be});
    } catch (const Json::exception&) {  // the value is of another type than the key has
      return absl::InvalidArgumentError(
          absl::StrCat(setting.path, ": got ", setting.value.dump(),
                       ", which is not of the type that DeepSpeed documents for this key"));
    }
    if (must_be.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(setting.path, ": got ", setting.value.dump(), ", must be ", must_be));
  }

  void Known(const DeepSpeedSetting& setting, const KnownKey& key) {
    const std::string value = setting.value.dump();
    std::string_view section = key.path;
    const bool all = section.ends_with(".*");
    if (all) section.remove_suffix(2);
    const bool off =
        setting.value == false ||
        (all && BoolOf(At(config_, absl::StrCat("/", Absl(section), "/enabled"))) == false);
    if (key.fate == Fate::kAutomatic) {
      draft_.Automatic(setting.path, value, std::string(key.note));
    } else if (off) {
      draft_.Automatic(setting.path, value, "off, as here");
    } else {
      draft_.Absent(setting.path, value, std::string(key.note));
    }
  }

  absl::Status Unknown(const DeepSpeedSetting& setting, std::string note) {
    draft_.Unknown(CleanLine(setting.path), setting.value.dump(), std::move(note));
    return absl::OkStatus();
  }

  static std::string SectionExample(std::string_view section) {
    std::string inside = "\"enabled\": true";
    if (section == "optimizer") inside = R"("type": "AdamW", "params": {"lr": 0.0001})";
    if (section == "scheduler") inside = R"("type": "WarmupDecayLR", "params": {})";
    if (section.find("offload") != section.npos) inside = R"("device": "cpu")";
    return absl::StrCat("{", inside, "}");
  }

  // DeepSpeed reads the old names still, but not beside the new ones.
  absl::Status CheckDeprecated() const {
    for (const auto& [old, replacement] : {std::pair("cpu_offload", "offload_optimizer"),
                                           std::pair("cpu_offload_param", "offload_param"),
                                           std::pair("cpu_offload_params", "offload_param")}) {
      const Json was = At(config_, absl::StrCat("/zero_optimization/", old));
      if (was.is_null() || At(config_, absl::StrCat("/zero_optimization/", replacement)).is_null())
        continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "zero_optimization.", old, ": got ", was.dump(), " beside ", replacement,
          ", must be one of them, as DeepSpeed demands; leave the old name ", old, " out"));
    }
    return absl::OkStatus();
  }

  static std::string Suggestion(std::string_view path) {
    std::vector<std::string_view> known;
    for (const auto& [key, handler] : DeepSpeedMappings()) known.push_back(key);
    for (const KnownKey& key : DeepSpeedKeysWithoutCounterpart()) known.push_back(key.path);
    const std::string_view nearest = Nearest(path, known);
    return nearest.empty()
               ? "no key of DeepSpeed"
               : absl::StrCat("no key of DeepSpeed; is ", std::string(nearest), " meant?");
  }

  // DeepSpeed's rule: global = micro x accumulation x data-parallel ranks; two of three are enough.
  absl::Status SetBatch() {
    ASSIGN_OR_RETURN(const int64_t global, Count("train_batch_size"));
    ASSIGN_OR_RETURN(const int64_t micro, Count("train_micro_batch_size_per_gpu"));
    ASSIGN_OR_RETURN(const int64_t accumulation, Count("gradient_accumulation_steps"));
    const int64_t devices =
        int64_t{std::max(1u, context_.nodes)} * std::max(1u, context_.devices_per_node);
    const int64_t ranks =
        std::max<int64_t>(1, devices / (Degree("layout.tp") * Degree("layout.cp")));
    const bool known = context_.devices_per_node > 0;
    if (global > 0 && micro > 0 && accumulation > 0 && known &&
        global != micro * accumulation * ranks) {
      return absl::InvalidArgumentError(absl::StrCat(
          "train_batch_size: got ", global, ", must be train_micro_batch_size_per_gpu ", micro,
          " x gradient_accumulation_steps ", accumulation, " x ", ranks,
          " data-parallel ranks = ", micro * accumulation * ranks, "; try another of the four"));
    }
    const int64_t one_rank = std::max<int64_t>(1, micro) * std::max<int64_t>(1, accumulation);
    if (global % one_rank != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "train_batch_size: got ", global, ", must be a multiple of ", one_rank,
          ", which train_micro_batch_size_per_gpu ", micro > 0 ? absl::StrCat(micro) : "auto",
          " and gradient_accumulation_steps ",
          accumulation > 0 ? absl::StrCat(accumulation) : "auto",
          " make for one rank; try another of the three"));
    }
    if (global > 0) return absl::OkStatus();
    const int64_t batch = one_rank * ranks;
    draft_.Set("train.global_batch", absl::StrCat(batch));
    draft_.Remark(
        absl::StrCat("train.global_batch is ", batch, ": micro batch x accumulation x ", ranks,
                     ranks == 1 ? " rank" : " ranks",
                     known ? "" : "; import with --nodes and --devices-per-node for more"));
    return absl::OkStatus();
  }

  // 0: not given, or "auto".
  absl::StatusOr<int64_t> Count(const char* key) const {
    const Json value = config_.value(key, Json());
    if (value.is_null() || IsAuto(value)) return 0;
    if (!value.is_number()) {
      return absl::InvalidArgumentError(
          absl::StrCat(key, ": got ", value.dump(), ", must be a number or \"auto\""));
    }
    const int64_t count = WholeOf(value);
    if (count >= 1 && count <= kCountMax) return count;
    return absl::InvalidArgumentError(
        absl::StrCat(key, ": got ", value.dump(), ", must be a whole number from 1 to ", kCountMax,
                     "; leave it out, or write \"auto\", to have it chosen"));
  }
  int64_t Degree(const char* key) const {
    int64_t degree = 1;
    return absl::SimpleAtoi(draft_.Get(key), &degree) ? std::clamp<int64_t>(degree, 1, kCountMax)
                                                      : 1;
  }

  const Json& config_;
  const ImportContext& context_;
  SpecDraft draft_;
};

absl::StatusOr<Json> ParseConfig(std::string_view text) {
  RETURN_IF_ERROR(CheckUtf8("the DeepSpeed configuration", text));
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    return absl::InvalidArgumentError(
        "the DeepSpeed configuration is empty; a ds_config.json begins with '{'");
  }
  absl::StatusOr<Json> config = ParseHjson(text);
  if (!config.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the DeepSpeed configuration is no JSON object (nor one of Hjson, which "
                     "DeepSpeed reads): ",
                     config.status().message()));
  }
  if (!config->is_object()) {
    return absl::InvalidArgumentError(
        "the DeepSpeed configuration is no JSON object; a ds_config.json begins with '{'");
  }
  return config;
}

}  // namespace

absl::StatusOr<SpecDraft> ImportDeepSpeed(std::string_view json, const ImportContext& context) {
  ASSIGN_OR_RETURN(const Json config, ParseConfig(json));
  return Importer(config, context).Run();
}

}  // namespace terrace
