// What the tensors of a state begin as, by the program's initializers, as a source to fill a rank's
// from: a pure function of (seed, tensor name, element).
//
// Borrows the initializers. Thread-safe once all is added.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/program/announced_weights.h"
#include "proto/v1/program.pb.h"
#include "worker/checkpoint/state_view.h"

namespace terrace {

class InitialState {
 public:
  InitialState(int64_t seed, const v1::Program& program);

  // The next tensor of the state, in ViewState's order. INVALID_ARGUMENT where a weight has no
  // initializer, or one of another shape.
  absl::Status Add(const StateTensor& tensor);
  void AddZero() { tensors_.push_back({}); }
  // Whether it is an adapter's weight, which the files of a model need not have.
  bool IsAdapter(const StateTensor& tensor) const;

  // A StateSource (fill.h).
  absl::Status Get(size_t index, int64_t begin, std::span<std::byte> to) const;

 private:
  struct Tensor {
    uint64_t stream = 0;
    kernels::DType dtype = kernels::DType::kF32;
    const v1::Initializer* initializer = nullptr;  // null: zero
    AnnouncedWeight::Part part = AnnouncedWeight::Part::kNumbers;
  };
  const AnnouncedWeight* Find(const StateTensor& tensor) const;
  absl::Status Encode(const Tensor& tensor, int64_t begin, std::span<std::byte> to) const;
  void FillConverted(const Tensor& tensor, int64_t begin, std::span<std::byte> to) const;

  const uint64_t seed_;
  const std::map<std::string, AnnouncedWeight> announced_;
  std::vector<Tensor> tensors_;
};

}  // namespace terrace
