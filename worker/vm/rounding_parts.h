// Whose random bits a rank rounds bf16 weights with (kernels/rounding.h): where the tensors of the
// state manifest lie in the operand of an update.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "kernels/op.h"
#include "proto/program/grid.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// What stands for a tensor in kernels::RoundingKey.
uint64_t TensorHash(std::string_view tensor);

// Sets rounding->parts for an operand of `elements`. INVALID_ARGUMENT where there are more than a
// kernel takes. REQUIRES: CheckProgram passed.
absl::Status ResolveRounding(const v1::Program& program, const Coordinates& rank, int64_t elements,
                             kernels::RoundingAttrs* rounding);

}  // namespace terrace
