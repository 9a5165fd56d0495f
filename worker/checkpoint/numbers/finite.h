// Whether numbers that are about to be kept are numbers. Pure. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "kernels/tensor_view.h"

namespace terrace {

// False when one of the elements is infinite or not a number. Types of whole numbers are finite.
// REQUIRES: whole elements, aligned as they are.
bool AllFinite(std::span<const std::byte> elements, kernels::DType dtype);

}  // namespace terrace
