// Well-known model sizes by name ("gpt2", "llama-3.2-1b", "qwen3-0.6b", ...), as the config.json
// each publishes. Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace terrace {

struct Preset {
  std::string_view name;
  std::string_view config_json;
  int64_t parameters;  // the published count; a test compares
};

// Sorted by name.
const std::vector<Preset>& Presets();
// Null when there is none of that name.
const Preset* FindPreset(std::string_view name);

}  // namespace terrace
