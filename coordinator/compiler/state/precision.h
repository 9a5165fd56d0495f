// In which precision the products of each layer and module compute, and what they read their
// matrices as.
//
// Thread-compatible: plain data.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/model/model.h"
#include "kernels/op.h"
#include "proto/v1/plan.pb.h"

namespace terrace::compiler {

struct Precisions {
  struct Layer {
    kernels::MatmulPrecision attention = kernels::MatmulPrecision::kF32;  // its projections
    kernels::MatmulPrecision mlp = kernels::MatmulPrecision::kF32;
  };

  kernels::DType activation = kernels::DType::kF32;
  kernels::MatmulPrecision scores = kernels::MatmulPrecision::kF32;  // between q, k and v
  kernels::MatmulPrecision head = kernels::MatmulPrecision::kF32;
  Layer each;                 // all layers, where `layers` is empty
  std::vector<Layer> layers;  // one a layer
  // The types that products of the default precision round f32 matrices to and that tables are
  // read in. Products in fp8 scale each matrix by its largest element, and so read it as it is.
  kernels::DType rounded = kernels::DType::kF32;
  kernels::DType table = kernels::DType::kF32;

  // The precision of the product with the weight of this role.
  kernels::MatmulPrecision Of(TensorRole role, int layer) const;
  // The type that a matrix or table may have when it is read, without a change of what is
  // computed: `rounded`, or f32. `tied`: the token embedding is the LM head as well.
  kernels::DType ReadAs(TensorRole role, int layer, bool tied) const;
};

// INVALID_ARGUMENT when a precision is unknown.
absl::StatusOr<Precisions> PrecisionsOf(const v1::Layout& layout);

}  // namespace terrace::compiler
