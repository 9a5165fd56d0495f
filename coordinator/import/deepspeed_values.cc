// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/deepspeed_values.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"

namespace terrace {

using Json = nlohmann::json;

bool IsAuto(const Json& value) { return value.is_string() && value == "auto"; }

std::optional<bool> BoolOf(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number() && (value == 0 || value == 1)) return value == 1;
  if (!value.is_string()) return std::nullopt;
  const std::string word = absl::AsciiStrToLower(value.get<std::string>());
  for (const char* yes : {"true", "t", "yes", "y", "on", "1"}) {
    if (word == yes) return true;
  }
  for (const char* no : {"false", "f", "no", "n", "off", "0"}) {
    if (word == no) return false;
  }
  return std::nullopt;
}

Switch SwitchOf(const Json& config, std::string_view pointer) {
  const Json value = At(config, pointer);
  if (IsAuto(value)) return Switch::kAuto;
  return BoolOf(value).value_or(false) ? Switch::kOn : Switch::kOff;
}

int64_t WholeOf(const Json& value) {
  constexpr double kMost = 9e18;
  if (value.is_number_unsigned()) {
    return static_cast<int64_t>(std::min<uint64_t>(value.get<uint64_t>(), INT64_MAX));
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  double number = 0;
  if (!value.is_string() || !absl::SimpleAtod(value.get<std::string>(), &number) ||
      std::isnan(number)) {
    number = value.get<double>();
  }
  return std::llround(std::clamp(number, -kMost, kMost));
}

Json At(const Json& config, std::string_view pointer) {
  const Json::json_pointer place{std::string(pointer)};
  return config.contains(place) ? config.at(place) : Json();
}

}  // namespace terrace
