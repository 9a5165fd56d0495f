// Appends the backward pass of a forward pass: one rule per op (RuleOf in
// autodiff.cc), applied in reverse.
//
// Gradients of activations. Every value that is differentiated has one gradient value, of the same
// shape, so that a slice's gradient is the same slice of it. Memory is reused where the ops allow
// it: the gradient of the residual stream is one buffer from the loss to the embedding, and
// SwiGLU's gradients overwrite its inputs.
//
// Gradients of parameters are f32 and live across micro-batches (ParameterGradients): the first
// contribution of a step writes, later ones (micro-batches, a tied embedding) update.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>

#include "absl/status/status.h"
#include "coordinator/compiler/builder.h"

namespace terrace::compiler {

// Thread-compatible.
class ParameterGradients {
 public:
  // The gradient value of a weight value; created by the first call.
  int Of(int weight, Builder* builder);
  // True once per weight: this contribution is the first.
  bool TakeFirst(int weight) { return written_.insert(weight).second; }
  // Weight value -> gradient value.
  const std::map<int, int>& all() const { return gradients_; }

 private:
  std::map<int, int> gradients_;
  std::set<int> written_;
};

// Differentiates nodes [begin, end) of the builder's sequence, which end in the loss: kLmHeadLoss
// becomes kLmHeadLossGrad, which starts the backward pass. INTERNAL when an op has no rule.
absl::Status AppendBackward(size_t begin, size_t end, ParameterGradients* parameters,
                            Builder* builder);

}  // namespace terrace::compiler
