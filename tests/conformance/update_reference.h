// What the updates of optimizers compute, in double: a part of op_reference.h.
//
// Internal to tests/conformance. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "tests/conformance/op_reference.h"

namespace terrace::kernels::conformance {

// REQUIRES: as RunReference, `operands` being all of the op's. Of kUpdateStochastic UpdateRef is
// the weight before it is rounded.
void UpdateRef(const UpdateAttrs& attrs, std::span<Values> operands);
void UpdateInt8Ref(const UpdateAttrs& attrs, std::span<Values> operands);
void UpdateMatrixRef(const UpdateAttrs& attrs, std::span<const TensorShape> shapes,
                     std::span<Values> operands);
void UpdateFactoredRef(const UpdateAttrs& attrs, std::span<const TensorShape> shapes,
                       std::span<Values> operands);

}  // namespace terrace::kernels::conformance
