// Fills the state of a rank, on whatever tier: every buffer of it once and whole, window after
// window in the order of memory, elements from a source and zeros between them. What has addresses
// is written in place; anything else through blocks (blocks.h), so no tier is read, and none
// written twice.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/status.h"
#include "worker/checkpoint/state_view.h"

namespace terrace {

// Puts elements of tensors[tensor], from `begin` on, into `to`, in the tensor's element type;
// aligned to it. Called on several threads at once.
using StateSource =
    std::function<absl::Status(size_t tensor, int64_t begin, std::span<std::byte> to)>;

// `tensors`: ViewState(state). INVALID_ARGUMENT when two of them share memory; what the source and
// the regions say otherwise, with the tensor's name.
absl::Status FillState(const RankState& state, std::span<const StateTensor> tensors, int threads,
                       const StateSource& source);

}  // namespace terrace
