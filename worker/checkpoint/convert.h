// Element conversion between the floating-point types of stored tensors. To a narrower type: round
// to nearest even, as IEEE 754 and PyTorch do.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/tensor_view.h"

namespace terrace {

inline float FloatOfBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
uint16_t Bf16OfFloat(float value);
float FloatOfF16(uint16_t bits);
uint16_t F16OfFloat(float value);

// Whether ConvertElements knows the pair: equal types, or both among f32, bf16, f16.
bool CanConvert(kernels::DType from, kernels::DType to);
// `source` and `target` need no alignment and do not overlap.
void ConvertElements(kernels::DType from, const std::byte* source, kernels::DType to,
                     std::byte* target, int64_t elements);

}  // namespace terrace
