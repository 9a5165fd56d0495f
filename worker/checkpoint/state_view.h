// A program's state manifest joined with a rank's memory: which elements of the job's tensors this
// process holds, where on which tier, and which of them it is the one to write.
//
// Takes about 48 bytes of memory for each slice: few where tensors are whole or cut by rows, one a
// row where they are cut by columns. Borrows the regions. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/optimizer_rule.h"
#include "kernels/tensor_view.h"
#include "proto/v1/program.pb.h"
#include "worker/checkpoint/checkpoint.h"

namespace terrace {

// Elements [begin, begin + elements) of the tensor, from byte `offset` of the region on.
struct StateSlice {
  int64_t begin = 0;
  int64_t elements = 0;
  Region* region = nullptr;
  int64_t offset = 0;   // a multiple of the element's size
  uint32_t buffer = 0;  // that they lie in
  bool owned = false;   // true on one of the ranks that hold them

  // Null when the region has no addresses.
  std::byte* data() const {
    std::byte* const first = region->data();
    return first == nullptr ? nullptr : first + offset;
  }
};

struct StateTensor {
  std::string tensor;       // the model's name for it
  std::string stored_name;  // in a checkpoint: see StoredName
  v1::StateKind kind = v1::STATE_UNSPECIFIED;
  kernels::DType dtype = kernels::DType::kF32;
  std::vector<int64_t> shape;  // of the whole
  std::vector<StateSlice>
      slices;  // by begin; they do not overlap; perhaps a part of it, or nothing

  int64_t element_bytes() const { return kernels::SizeOf(dtype); }
  // Whether all of the rank's part has addresses.
  bool addressable() const;
};

// "<tensor>" of a weight, "<tensor>.residual"; of a moment, and of its scales, as the optimizer's
// rule names it: "<tensor>.adam_m", "<tensor>.adam_m_scales", "<tensor>.adafactor_row".
std::string StoredName(std::string_view tensor, v1::StateKind kind,
                       const kernels::OptimizerRow& optimizer);
// By which the program updates weights.
const kernels::OptimizerRow& OptimizerOf(const v1::Program& program);

// In the manifest's order of first mention. INVALID_ARGUMENT when a range lies outside its buffer
// or the rank holds an element twice. Slices that follow each other in the tensor and in memory are
// one.
absl::StatusOr<std::vector<StateTensor>> ViewState(const RankState& state);

// "[768, 2304]"
std::string ShapeText(std::span<const int64_t> shape);

}  // namespace terrace
