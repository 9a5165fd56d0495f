// Copies a stored tensor into the state of a rank, converting the element type.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/state_view.h"

namespace terrace {

// INVALID_ARGUMENT, naming `path`, the tensor and both sides, when the shape or the element type
// does not fit.
absl::Status FillTensor(const StoredTensor& stored, std::string_view path,
                        const StateTensor& target);

}  // namespace terrace
