// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/deepspeed_precision.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "coordinator/import/deepspeed_values.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kKeys[] = {"bf16.enabled", "bfloat16.enabled", "fp16.enabled",
                                      "torch_autocast.enabled", "torch_autocast.dtype"};

std::string PointerOf(std::string_view path) {
  std::string pointer = absl::StrCat("/", Absl(path));
  std::replace(pointer.begin(), pointer.end(), '.', '/');
  return pointer;
}

absl::Status CheckSwitches(const Json& config) {
  for (const std::string_view key : kKeys) {
    const Json value = At(config, PointerOf(key));
    if (!key.ends_with(".enabled") || value.is_null() || IsAuto(value) || BoolOf(value)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(Absl(key), ": got ", value.dump(), ", must be true, false or \"auto\""));
  }
  return absl::OkStatus();
}

// Of autocasting, which keeps fp32 weights as train.precision does. Empty: off, or fp32.
std::string AutocastPrecision(const Json& config) {
  if (SwitchOf(config, "/torch_autocast/enabled") != Switch::kOn) return "";
  const Json dtype = At(config, "/torch_autocast/dtype");
  if (!dtype.is_string()) return "bf16";  // torch's own where none is given
  std::string word = dtype.get<std::string>();
  if (word.starts_with("torch.")) word = word.substr(6);
  if (word == "bf16" || word == "bfloat16") return "bf16";
  return word == "fp16" || word == "float16" || word == "half" ? "fp16" : "";
}

class Precision {
 public:
  Precision(const Json& config, SpecDraft* draft) : config_(config), draft_(draft) {}

  absl::Status Set() {
    RETURN_IF_ERROR(CheckSwitches(config_));
    // The old name counts only where the new one is not there.
    bf16_key_ = At(config_, "/bf16").is_null() ? "bfloat16.enabled" : "bf16.enabled";
    const Switch bf16 = SwitchOf(config_, PointerOf(bf16_key_));
    const Switch fp16 = SwitchOf(config_, "/fp16/enabled");
    if (bf16 == Switch::kOn && fp16 == Switch::kOn) {
      return absl::InvalidArgumentError(
          absl::StrCat(Absl(bf16_key_),
                       ": got true beside fp16.enabled: true, must be one of "
                       "them, as DeepSpeed demands; set the other to false"));
    }
    autocast_ = AutocastPrecision(config_);
    if (bf16 == Switch::kOn) {
      chosen_ = "bf16", by_ = bf16_key_;
    } else if (fp16 == Switch::kOn) {
      chosen_ = "fp16", by_ = "fp16.enabled";
    } else if (!autocast_.empty()) {
      chosen_ = autocast_, by_ = "torch_autocast.enabled";
    } else if (bf16 != Switch::kAuto && fp16 != Switch::kAuto) {
      chosen_ = "fp32", by_ = bf16_key_;
    }
    if (chosen_.empty()) {
      draft_->Remark(
          "train.precision is undecided: fp16 and bf16 are left to the trainer (\"auto\"), so it "
          "is "
          "left out and bf16, its default, counts; set it to what the trainer was started with");
    } else {
      draft_->Set("train.precision", chosen_);
    }
    for (const std::string_view key : kKeys) Account(key);
    return absl::OkStatus();
  }

 private:
  void Account(std::string_view key) {
    const Json value = At(config_, PointerOf(key));
    if (!config_.contains(Json::json_pointer(PointerOf(key)))) return;
    const std::string name(key), text = value.dump();
    if (key == by_) {
      draft_->Mapped(name, text, "train.precision", chosen_);
    } else if (key == "bfloat16.enabled" && key != bf16_key_) {
      draft_->Automatic(name, text, "bf16 is there, which counts before it");
    } else if (key == "torch_autocast.dtype" && by_ == "torch_autocast.enabled") {
      draft_->Mapped(name, text, "train.precision", chosen_);
    } else if (IsAuto(value)) {
      draft_->Automatic(name, "auto",
                        chosen_.empty() ? "undecided: train.precision is left out"
                                        : absl::StrCat(Absl(by_), " decides"));
    } else if (BoolOf(value).value_or(false) || key == "torch_autocast.dtype") {
      draft_->Absent(name, text, absl::StrCat("train.precision is ", chosen_));
    } else {
      draft_->Automatic(name, text, "off, as here");
    }
  }

  const Json& config_;
  SpecDraft* draft_;
  std::string_view bf16_key_, by_;
  std::string autocast_, chosen_;
};

}  // namespace

bool IsPrecisionKey(std::string_view path) {
  return std::find(std::begin(kKeys), std::end(kKeys), path) != std::end(kKeys);
}

absl::Status SetDeepSpeedPrecision(const Json& config, SpecDraft* draft) {
  return Precision(config, draft).Set();
}

}  // namespace terrace
