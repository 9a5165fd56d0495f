// Operands of an fp8 product on the CPU, which has no units for 8-bit numbers: quantised values
// kept as bf16, which holds every one of them exactly, so that the bf16 product computes what an
// fp8 product is.
//
// Internal to kernels/cpu. Bitwise deterministic, whatever the number of threads. Thread-safe: no
// state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/fp8.h"
#include "kernels/tensor_view.h"

namespace terrace::kernels::cpu {

// The scale that `from` has by its own largest magnitude; its elements, quantised with it, are
// written to `to` (bf16, of from's shape) as the values of their codes. Any NaN becomes bf16's.
Fp8Scale QuantiseFp8(const TensorView& from, const TensorView& to, Fp8Format format, int threads);

}  // namespace terrace::kernels::cpu
