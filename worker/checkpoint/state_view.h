// A program's state manifest joined with a rank's memory: which elements of the job's tensors this
// process holds, at which addresses, and which of them it is the one to write.
//
// Borrows the memory. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/tensor_view.h"
#include "proto/v1/program.pb.h"
#include "worker/checkpoint/checkpoint.h"

namespace terrace {

// Elements [begin, begin + elements) of the tensor.
struct StateSlice {
  int64_t begin = 0;
  int64_t elements = 0;
  std::byte* data = nullptr;
  bool owned = false;  // true on one of the ranks that hold them
};

struct StateTensor {
  std::string tensor;       // the model's name for it
  std::string stored_name;  // in a checkpoint: see StoredName
  v1::StateKind kind = v1::STATE_UNSPECIFIED;
  kernels::DType dtype = kernels::DType::kF32;
  std::vector<int64_t> shape;  // of the whole
  std::vector<StateSlice>
      slices;  // by begin; they do not overlap; perhaps a part of it, or nothing
};

// "<tensor>" of a weight, "<tensor>.adam_m", "<tensor>.adam_v".
std::string StoredName(std::string_view tensor, v1::StateKind kind);

// In the manifest's order of first mention. INVALID_ARGUMENT when a range lies outside its buffer
// or the rank holds an element twice.
absl::StatusOr<std::vector<StateTensor>> ViewState(const RankState& state);

// Zeroes the buffers of the state that hold more than elements of tensors.
// REQUIRES: ViewState(state) is OK.
void ZeroPadding(const RankState& state);

// "[768, 2304]"
std::string ShapeText(std::span<const int64_t> shape);

}  // namespace terrace
