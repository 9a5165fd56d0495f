// The operands of an op case in host memory, as a backend gets them: outputs poisoned, gaps between
// rows poisoned, operands that share memory sharing it.
//
// Owns the memory; views and buffers are valid as long as it lives. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "tests/conformance/op_case.h"
#include "tests/conformance/op_reference.h"

namespace terrace::kernels::conformance {

// What lies in memory that nobody may read (outputs before the op) or write (gaps between rows). As
// f32 and as bf16 it is a NaN, so that whoever reads it spoils the result.
inline constexpr std::byte kPoison{0xff};

class OpMemory {
 public:
  OpMemory(const OpCase& op_case, const std::vector<Values>& values);

  std::vector<TensorView> Views();
  Values Read(int index) const;
  bool GapsAreUntouched(int index) const;
  const std::vector<std::vector<std::byte>>& buffers() const { return buffers_; }
  // No output lies in the memory of operand `index`.
  bool IsOnlyRead(int index) const;

 private:
  Access AccessOf(size_t i) const {
    return OperandAccess(op_case_.op, op_case_.attrs, static_cast<int>(i));
  }
  bool IsRead(size_t i) const {
    return AccessOf(i) == Access::kRead || AccessOf(i) == Access::kUpdate;
  }

  const OpCase& op_case_;
  std::vector<std::vector<std::byte>> buffers_;
  std::vector<int> owner_;  // whose buffer each operand lies in
};

}  // namespace terrace::kernels::conformance
