// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/deepspeed.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/nearest.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "coordinator/import/deepspeed_keys.h"
#include "coordinator/import/deepspeed_mappings.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

// Deeper or longer than any configuration that means something.
constexpr int kDepthMax = 8;
constexpr size_t kKeysMax = 2000;
constexpr int64_t kCountMax = 1'000'000;  // of batch sizes: their product stays a number

bool IsAuto(const Json& value) { return value.is_string() && value == "auto"; }

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

bool Matches(std::string_view pattern, std::string_view path) {
  if (!pattern.ends_with(".*")) return pattern == path;
  pattern.remove_suffix(2);
  return path == pattern || (path.starts_with(pattern) && path[pattern.size()] == '.');
}

class Importer {
 public:
  Importer(const Json& config, const ImportContext& context) : config_(config), context_(context) {}

  absl::StatusOr<SpecDraft> Run() {
    std::vector<DeepSpeedSetting> settings;
    RETURN_IF_ERROR(Flatten(config_, "", 0, &settings));
    for (const DeepSpeedSetting& setting : settings) RETURN_IF_ERROR(Import(setting));
    RETURN_IF_ERROR(SetBatch());
    if (!draft_.Has("train.precision")) draft_.Set("train.precision", "fp32");
    Complete(context_, &draft_);
    return std::move(draft_);
  }

 private:
  absl::Status Import(const DeepSpeedSetting& setting) {
    const auto handler = DeepSpeedMappings().find(setting.path);
    if (IsAuto(setting.value)) {
      const bool precision = setting.path == "bf16.enabled" || setting.path == "fp16.enabled";
      draft_.Automatic(setting.path, "auto",
                       precision
                           ? "train.precision is fp32 unless it is set: bf16 and fp16 are others"
                           : "left to the planner or the default");
      return absl::OkStatus();
    }
    if (handler != DeepSpeedMappings().end()) {
      std::string must_be;
      try {
        handler->second({setting, config_, &draft_, &must_be});
      } catch (const Json::exception&) {  // the value is of another type than the key has
        return absl::InvalidArgumentError(
            absl::StrCat(setting.path, ": got ", setting.value.dump(),
                         ", which is not of the type that DeepSpeed documents for this key"));
      }
      if (!must_be.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat(setting.path, ": got ", setting.value.dump(), ", must be ", must_be));
      }
      return absl::OkStatus();
    }
    for (const KnownKey& key : DeepSpeedKeysThatNeverWere()) {
      if (Matches(key.path, setting.path)) return Unknown(setting, std::string(key.note));
    }
    for (const KnownKey& key : DeepSpeedKeysWithoutCounterpart()) {
      if (!Matches(key.path, setting.path)) continue;
      if (key.fate == Fate::kAutomatic) {
        draft_.Automatic(setting.path, setting.value.dump(), std::string(key.note));
      } else {
        draft_.Absent(setting.path, setting.value.dump(), std::string(key.note));
      }
      return absl::OkStatus();
    }
    if (setting.path.starts_with("optimizer.params.") ||
        setting.path.starts_with("scheduler.params.")) {
      draft_.Absent(setting.path, setting.value.dump(),
                    "AdamW and the schedules here have no such parameter");
      return absl::OkStatus();
    }
    return Unknown(setting, Suggestion(setting.path));
  }

  absl::Status Unknown(const DeepSpeedSetting& setting, std::string note) {
    draft_.Unknown(setting.path, setting.value.dump(), std::move(note));
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
    if (global > 0) return absl::OkStatus();
    const int64_t batch = std::max<int64_t>(1, micro) * std::max<int64_t>(1, accumulation) * ranks;
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
    if (!value.is_number()) return 0;
    const int64_t count = WholeOf(value);
    if (count >= 1 && count <= kCountMax) return count;
    return absl::InvalidArgumentError(
        absl::StrCat(key, ": got ", value.dump(), ", must be a whole number from 1 to ", kCountMax,
                     "; leave it out, or write \"auto\", to have it chosen"));
  }
  int64_t Degree(const char* key) const {
    int64_t degree = 1;
    return absl::SimpleAtoi(draft_.Get(key), &degree) ? std::max<int64_t>(1, degree) : 1;
  }

  const Json& config_;
  const ImportContext& context_;
  SpecDraft draft_;
};

// DeepSpeed refuses keys that stand twice, of which a parser would take the last.
class Duplicates {
 public:
  bool operator()(int /*depth*/, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) objects_.emplace_back();
    if (event == Json::parse_event_t::object_end && !objects_.empty()) objects_.pop_back();
    if (event != Json::parse_event_t::key || objects_.empty()) return true;
    const auto key = parsed.get<std::string>();
    if (!objects_.back().insert(key).second && first_.empty()) first_ = key;
    return true;
  }
  const std::string& first() const { return first_; }

 private:
  std::vector<std::set<std::string>> objects_;  // that are open
  std::string first_;
};

// nlohmann's exception says where; this is the edge where it becomes a status.
absl::StatusOr<Json> ParseConfig(std::string_view json) {
  Duplicates duplicates;
  Json config;
  try {
    config = Json::parse(json, std::ref(duplicates), /*allow_exceptions=*/true,
                         /*ignore_comments=*/true);
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the DeepSpeed configuration is no JSON object (JSON has no trailing commas): ",
        error.what()));
  }
  if (!config.is_object()) {
    return absl::InvalidArgumentError(
        "the DeepSpeed configuration is no JSON object; a ds_config.json begins with '{'");
  }
  if (!duplicates.first().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(duplicates.first(), ": got the key twice, must be given once"));
  }
  return config;
}

}  // namespace

absl::StatusOr<SpecDraft> ImportDeepSpeed(std::string_view json, const ImportContext& context) {
  ASSIGN_OR_RETURN(const Json config, ParseConfig(json));
  return Importer(config, context).Run();
}

}  // namespace terrace
