// The CUDA backend: which kernel implements which op. An op that is not finished has none, so that
// a program with it is refused with the op's name. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "kernels/cuda/context.h"

namespace terrace::kernels::cuda {

// Null where there is no CUDA kernel for the op.
Kernel Find(Op op);

// Fine when every op has a kernel; otherwise a sentence that names the first that has none.
Status CheckSupported(std::span<const Op> ops);

}  // namespace terrace::kernels::cuda
