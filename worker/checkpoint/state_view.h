// A program's state manifest joined with its arenas: every tensor of the job's state with its
// addresses in this process.
//
// Borrows the arenas. Thread-compatible.
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

namespace terrace {

// Elements [begin, begin + elements) of the tensor.
struct StateSlice {
  int64_t begin = 0;
  int64_t elements = 0;
  std::byte* data = nullptr;
};

struct StateTensor {
  std::string tensor;       // the model's name for it
  std::string stored_name;  // in a checkpoint: "<tensor>" or "<tensor>.adam_m", "<tensor>.adam_v"
  v1::StateKind kind = v1::STATE_UNSPECIFIED;
  kernels::DType dtype = kernels::DType::kF32;
  std::vector<int64_t> shape;
  std::vector<StateSlice> slices;  // by begin
  int64_t elements() const;
  int64_t bytes() const { return elements() * kernels::SizeOf(dtype); }
};

// In the manifest's order of first mention. INVALID_ARGUMENT when a tensor is not covered exactly
// once or a range lies outside its buffer: then the program is not one for a rank that holds whole
// tensors.
absl::StatusOr<std::vector<StateTensor>> ViewState(const v1::Program& program,
                                                   std::span<std::byte* const> arenas);

// "[768, 2304]"
std::string ShapeText(std::span<const int64_t> shape);

}  // namespace terrace
