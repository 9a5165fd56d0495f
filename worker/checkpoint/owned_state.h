// Writes what a rank owns of its state into the files of a checkpoint. What has addresses goes to
// the file from where it lies; anything else is read in windows (blocks.h), two at a time, so that
// the tier works while a file is written.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "absl/status/status.h"
#include "worker/checkpoint/safetensors/safetensors.h"
#include "worker/checkpoint/state_view.h"

namespace terrace {

// The slices of `tensors` that this rank owns. An error of the memory names the tensor; so does
// OUT_OF_RANGE, where a number is not finite.
absl::Status WriteOwned(std::span<const StateTensor* const> tensors, SafetensorsWriter* writer);
bool OwnsSome(const StateTensor& tensor);

}  // namespace terrace
