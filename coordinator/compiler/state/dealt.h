// Which rank of those that share states has which tensor, where the optimizer updates tensors as
// wholes (coordinator/layout/dealing.h).
//
// Parameters of one kind, the same of several layers, form units of as many as there are shards:
// the region of such a unit has one parameter in each shard, from the shard's first element on, and
// so all ranks update their own with the same instructions. Shards without one hold zeros, and
// zeros are updated to zeros.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "coordinator/compiler/state/parameters.h"

namespace terrace::compiler {

// Where a parameter is.
struct Dealt {
  bool whole = false;  // is updated as a whole
  int leader = kNone;  // the first parameter of its unit; kNone: every rank keeps it
  int64_t shard = 0;
};

// `reads`: the type of a parameter's weights as passes read them. `by_chunk`: the gradients of
// model chunks are summed apart, so that a unit may not be of several.
std::vector<Dealt> DealParameters(const std::vector<Parameter>& parameters, int64_t shards,
                                  bool by_chunk,
                                  absl::FunctionRef<kernels::DType(const Parameter&)> reads);

}  // namespace terrace::compiler
