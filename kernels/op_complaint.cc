// SPDX-License-Identifier: Apache-2.0
#include "kernels/op_complaint.h"

namespace terrace::kernels {

std::string Complain(const OpRow& row, int index, const TensorShape& shape,
                     const std::string& must) {
  return std::string(row.name) + ": operand '" + std::string(row.operands[index].name) + "' is " +
         shape.ToString() + ", must " + must;
}

std::string ComplainAttr(const OpRow& row, std::string_view attr, const std::string& value,
                         const std::string& must) {
  return std::string(row.name) + ": attribute '" + std::string(attr) + "' is " + value + ", must " +
         must;
}

}  // namespace terrace::kernels
