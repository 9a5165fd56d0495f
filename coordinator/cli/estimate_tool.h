// `terrace estimate`: the memory arithmetic of a model, printed.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace terrace {

struct EstimateOptions {
  std::string model;            // preset, config.json or its folder
  int64_t sequence_length = 0;  // 0: 2048, or the most positions that the model has
  int64_t batch = 1;
  int64_t devices = 1;
  int64_t lora_rank = 16;
  std::string precision = "bf16";
  std::string optimizer = "adamw";  // one of OptimizerNames()
  std::string moments = "f32";      // as formats.moments of a job spec
  std::string gradient = "f32";     // as formats.gradient
  std::string only;                 // one section; empty: all
  bool json = false;
};

// The names of the rules in kernels/optimizer_rule.h.
std::vector<std::string> OptimizerNames();

// NOT_FOUND with the nearest presets when there is no such model.
absl::Status PrintEstimate(const EstimateOptions& options);

}  // namespace terrace
