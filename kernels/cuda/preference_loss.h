// The loss of pairs of sequences (kPreferenceLoss in kernels/op.h) on a GPU.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/kernel.h"

namespace terrace::kernels::cuda {

Status PreferenceLoss(const OpAttrs& attrs, std::span<const TensorView> operands,
                      const Context& context);

}  // namespace terrace::kernels::cuda
