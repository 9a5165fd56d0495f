// The tensors of an adapter that PEFT saved, by the names that they have beside the model's.
//
// Thread-safe after Open.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/checkpoint/safetensors/safetensors.h"

namespace terrace {

class SavedAdapter {
 public:
  struct Expected {
    std::string tensor;  // "model.layers.0.mlp.up_proj.lora_A.weight"
    std::vector<int64_t> shape;
  };
  // `folder`: with adapter_model.safetensors. It must hold just the tensors that are expected,
  // which are all of the model's adapters: INVALID_ARGUMENT names one that is missing, is too many
  // or has another shape, with the shapes.
  static absl::StatusOr<SavedAdapter> Open(std::string_view folder,
                                           std::span<const Expected> expected);

  // REQUIRES: it was expected.
  const StoredTensor& Get(std::string_view tensor) const { return tensors_.find(tensor)->second; }

 private:
  explicit SavedAdapter(std::unique_ptr<SafetensorsReader> reader) : reader_(std::move(reader)) {}

  std::unique_ptr<SafetensorsReader> reader_;
  std::map<std::string, StoredTensor, std::less<>> tensors_;
};

}  // namespace terrace
