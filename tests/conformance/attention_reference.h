// What attention and its gradient compute, in double: a part of op_reference.h.
//
// Internal to tests/conformance. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "tests/conformance/op_reference.h"

namespace terrace::kernels::conformance {

// REQUIRES: as RunReference, `operands` being all of the op's.
void AttentionRef(const AttentionAttrs& attrs, std::span<const TensorShape> shapes,
                  std::span<Values> operands);
void AttentionCachedRef(const AttentionAttrs& attrs, std::span<const TensorShape> shapes,
                        std::span<Values> operands);
void AttentionGradRef(const AttentionAttrs& attrs, std::span<const TensorShape> shapes,
                      std::span<Values> operands);

}  // namespace terrace::kernels::conformance
