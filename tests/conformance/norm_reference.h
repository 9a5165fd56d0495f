// What the norms and their gradients compute, in double: a part of op_reference.h.
//
// Internal to tests/conformance. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "tests/conformance/op_reference.h"

namespace terrace::kernels::conformance {

// REQUIRES: as RunReference, `operands` being all of the op's.
void LayerNormRef(const NormAttrs& attrs, std::span<const TensorShape> shapes,
                  std::span<Values> operands);
void LayerNormGradRef(const NormAttrs& attrs, std::span<const TensorShape> shapes,
                      std::span<Values> operands);
void RmsNormRef(const NormAttrs& attrs, std::span<const TensorShape> shapes,
                std::span<Values> operands);
void RmsNormGradRef(const NormAttrs& attrs, std::span<const TensorShape> shapes,
                    std::span<Values> operands);

}  // namespace terrace::kernels::conformance
