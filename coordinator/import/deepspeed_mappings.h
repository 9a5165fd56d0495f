// What becomes of each DeepSpeed key that has a counterpart here: the key of the spec that it sets,
// and to what. Keys without one: deepspeed_keys.h.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "coordinator/import/draft.h"

namespace terrace {

struct DeepSpeedSetting {
  std::string path;  // "zero_optimization.stage"
  nlohmann::json value;
};
struct DeepSpeedValue {
  const DeepSpeedSetting& setting;
  const nlohmann::json& config;  // all of it
  SpecDraft* draft;
  std::string* must_be;  // set for a value that the key cannot have
};
// Throws nlohmann's exception for a value of another type than the key has.
using DeepSpeedMapping = void (*)(const DeepSpeedValue&);
const std::map<std::string_view, DeepSpeedMapping>& DeepSpeedMappings();

}  // namespace terrace
