// What is wrong with an op's operand or attribute, as one sentence that names it: "matmul: operand
// 'bias' is f32[7], must be ...".
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "kernels/op_table.h"

namespace terrace::kernels {

std::string Complain(const OpRow& row, int index, const TensorShape& shape,
                     const std::string& must);
std::string ComplainAttr(const OpRow& row, std::string_view attr, const std::string& value,
                         const std::string& must);

}  // namespace terrace::kernels
