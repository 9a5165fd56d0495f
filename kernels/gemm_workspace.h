// Scratch bytes of a matrix product, for the op table and for kernels that multiply inside a larger op.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/op.h"

namespace terrace::kernels {

// Scratch for any product of these sizes and precision with `threads` threads on the CPU backend. Depends on nothing else,
// so that a plan made on one machine holds on another: it is the largest over all code paths.
int64_t GemmWorkspaceBytes(int64_t m, int64_t n, int64_t k, MatmulPrecision precision, int threads);

}  // namespace terrace::kernels
