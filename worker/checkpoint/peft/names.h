// Adapters (LoRA) as PEFT names them. Beside the matrix "<module>.weight" [out, in] stand
// "<module>.lora_A.weight" [rank, in] and "<module>.lora_B.weight" [out, rank]; PEFT's own files
// put a prefix in front, and keep the numbers in a config beside them.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace terrace {

inline constexpr char kPeftPrefix[] = "base_model.model.";
inline constexpr char kPeftWeights[] = "adapter_model.safetensors";
inline constexpr char kPeftConfig[] = "adapter_config.json";

inline constexpr std::string_view kWeightEnding = ".weight";
inline constexpr std::string_view kLoraAEnding = ".lora_A.weight";
inline constexpr std::string_view kLoraBEnding = ".lora_B.weight";

inline bool IsAdapterTensor(std::string_view name) {
  return name.ends_with(kLoraAEnding) || name.ends_with(kLoraBEnding);
}

// "model.layers.0.mlp.up_proj" of its weight and of its adapter's; nothing of other tensors.
inline std::optional<std::string> ModuleOf(std::string_view tensor) {
  for (const std::string_view ending : {kLoraAEnding, kLoraBEnding, kWeightEnding}) {
    if (tensor.ends_with(ending))
      return std::string(tensor.substr(0, tensor.size() - ending.size()));
  }
  return std::nullopt;
}

}  // namespace terrace
