// The rules of single ops that no matching of symbols can say: attributes in range, operands that
// fit the attributes.
//
// In: an op's row, its attributes, its operands, whose shapes match the row (CheckShapes). Out: ""
// or what is wrong (op_complaint.h). Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kernels/op_table.h"

namespace terrace::kernels {

// Above this a size is a mistake or an attack; below it no byte count can overflow.
inline constexpr int64_t kMaxSpanElements = int64_t{1} << 56;

std::string CheckOwnRules(const OpRow& row, const OpAttrs& attrs,
                          std::span<const TensorShape> operands);

}  // namespace terrace::kernels
