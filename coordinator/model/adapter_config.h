// A LoRA adapter as PEFT keeps it, read from its adapter_config.json: what of it this compiler
// trains, or a refusal. Nothing that decides the adapter's numbers is ignored.
//
// Keys as in PEFT's LoraConfig, 0.10 to 0.21. Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace {

struct AdapterConfig {
  int64_t rank = 0;
  double alpha = 0;
  double dropout = 0;   // of what A reads
  bool rslora = false;  // the product is scaled by alpha / sqrt(rank) instead of alpha / rank
  // Names of modules or their last parts ("q_proj", "model.layers.0.self_attn.q_proj"), sorted; or
  // "all-linear" alone: as LoraConfig has them.
  std::vector<std::string> targets;
};

// INVALID_ARGUMENT lists every problem (key, value, rule, way out).
absl::StatusOr<AdapterConfig> ParseAdapterConfig(std::string_view json);

}  // namespace terrace
