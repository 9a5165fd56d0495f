// What the speed of an op depends on: the name under which its rate is measured and looked up, the
// arithmetic, and up to three sizes. One place for those who measure (worker/probe) and
// those who predict (coordinator/simulator/compute_time.h), so that both mean the same.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kernels/op.h"

namespace terrace::kernels {

// kernel                        rows                   columns          inner
// matmul, matmul_nt, matmul_tn  M                      N                K
// attention, attention_grad     tokens of a sequence   head size        sequences x heads
// lm_head_loss, ..._grad        tokens                 vocabulary       hidden size
// update_matrix, as a matmul    rows                   columns          the fewer of them
// all else: the op's name       rows                   their elements   1
//
// A product's suffix says which operands are transposed: "n" or "t" for a and for b; "matmul" is
// the one of which neither is.
struct RateClass {
  std::string kernel;
  std::string
      precision;  // "fp32", "tf32", "bf16": of the products, where there are any, or the elements
  int64_t rows = 1;
  int64_t columns = 1;
  int64_t inner = 1;
};

// REQUIRES: CheckShapes is empty.
RateClass RateClassOf(Op op, const OpAttrs& attrs, std::span<const TensorShape> operands);

}  // namespace terrace::kernels
