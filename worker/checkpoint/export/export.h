// Checkpoints as folders that others read: a model for `transformers`, an adapter for PEFT, a model
// into which its adapter is merged.
//
// All verify the checkpoint first and write like a checkpoint: the folder appears whole or not at
// all. It must not exist, or be empty (ALREADY_EXISTS). `dtype`: "f32", "bf16", "f16".
// INVALID_ARGUMENT when the checkpoint is not of the kind asked for, with the way out.
//
// Memory: some MiB of a tensor at a time; of merging, the two thin matrices besides, in f32.
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/export/low_rank.h"
#include "worker/data/special_tokens.h"

namespace terrace {

// Writes a folder that AutoModelForCausalLM.from_pretrained loads: model.safetensors, config.json,
// generation_config.json and tokenizer files, which name the tokens of `special`. Of a checkpoint
// without an adapter.
absl::Status ExportCheckpoint(std::string_view checkpoint, std::string_view output,
                              std::string_view dtype, const SpecialTokens& special);

// Writes a folder that PeftModel.from_pretrained loads: adapter_model.safetensors and
// adapter_config.json, which names the folder of model.init as the base.
absl::Status ExportAdapter(std::string_view checkpoint, std::string_view output,
                           std::string_view dtype);

struct MergeResult {
  int64_t matrices = 0;
  Rounding rounding;
};
// As ExportCheckpoint, with W + scale * B A in place of each matrix W that has an adapter: computed
// in f32 and rounded once. `progress` is told the fraction done.
absl::StatusOr<MergeResult> MergeCheckpoint(std::string_view checkpoint, std::string_view output,
                                            std::string_view dtype, const SpecialTokens& special,
                                            const std::function<void(double)>& progress);

}  // namespace terrace
