// State as files of tensors hold it, as a source to fill a rank's from: each tensor of the state
// has one in a file, of the same shape and perhaps another floating-point type, or is zero.
//
// Borrows the reader of what is added. Thread-safe once all is added.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "proto/program/announced_weights.h"
#include "worker/checkpoint/safetensors/safetensors.h"
#include "worker/checkpoint/state_view.h"
#include "worker/checkpoint/stored_moment.h"
#include "worker/checkpoint/stored_weight.h"

namespace terrace {

class StoredState {
 public:
  // `path` is for messages.
  explicit StoredState(std::string_view path) : path_(path) {}

  // The next tensor of the state, in ViewState's order. INVALID_ARGUMENT, naming path, tensor and
  // both sides, when the shape or the element type does not fit.
  absl::Status Add(const StoredTensor& stored, const StateTensor& target);
  void AddZero() { tensors_.push_back({}); }
  // The next one is a weight, or the codes or the scales of one; `announced` may be null: it is
  // numbers.
  absl::Status AddWeight(const StoredWeight& stored, const StateTensor& target,
                         const AnnouncedWeight* announced);
  // The next one is a moment, or the scales of one, in `block` elements a scale.
  void AddMoment(const StoredMoment& stored, const StateTensor& target, int64_t block) {
    tensors_.push_back({.target = target.dtype,
                        .moment = stored,
                        .scales = IsScales(target.kind),
                        .block = block});
  }

  // A StateSource (fill.h).
  absl::Status Get(size_t tensor, int64_t begin, std::span<std::byte> to) const;

 private:
  struct Tensor {
    std::optional<StoredTensor> stored;
    kernels::DType target = kernels::DType::kF32;
    std::optional<StoredMoment> moment = {};
    bool scales = false;
    int64_t block = 0;
    std::optional<StoredWeight> weight = {};
    AnnouncedWeight::Part part = AnnouncedWeight::Part::kNumbers;
    CodeFormat codes = {};
  };
  absl::Status CheckShape(const std::string& name, std::span<const int64_t> stored,
                          std::span<const int64_t> model) const;
  static absl::Status GetWeight(const Tensor& tensor, int64_t begin, std::span<std::byte> to);
  static absl::Status GetMoment(const Tensor& tensor, int64_t begin, std::span<std::byte> to);

  const std::string_view path_;
  std::vector<Tensor> tensors_;
};

}  // namespace terrace
