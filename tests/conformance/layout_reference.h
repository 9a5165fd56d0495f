// What the ops compute that only split layouts need, in double: the part of op_reference.h that
// grows with layouts.
//
// Internal to tests/conformance. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "tests/conformance/op_reference.h"

namespace terrace::kernels::conformance {

// REQUIRES: as RunReference, `operands` being all of the op's.
void AttentionBlockRef(const AttentionBlockAttrs& attrs, std::span<const TensorShape> shapes,
                       std::span<Values> operands);
void AttentionBlockGradRef(const AttentionBlockAttrs& attrs, std::span<const TensorShape> shapes,
                           std::span<Values> operands);
void CrossEntropyRowsRef(const CrossEntropyAttrs& attrs, std::span<const TensorShape> shapes,
                         std::span<Values> operands);
void CrossEntropyLossRef(const CrossEntropyAttrs& attrs, std::span<const TensorShape> shapes,
                         std::span<Values> operands);
void CrossEntropyGradRef(const CrossEntropyAttrs& attrs, std::span<const TensorShape> shapes,
                         std::span<Values> operands);
void AddResidualRef(std::span<const TensorShape> shapes, std::span<Values> operands);
void PermuteRef(const PermuteAttrs& attrs, std::span<const TensorShape> shapes,
                std::span<Values> operands);

}  // namespace terrace::kernels::conformance
