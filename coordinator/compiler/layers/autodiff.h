// The backward pass of a recorded forward pass: one rule per op (RuleOf in autodiff.cc), applied in
// reverse. What was not kept is recomputed first (recompute.h).
//
// Gradients of activations. Every value that is differentiated has one gradient value, of the same
// shape, so that a slice's gradient is the same slice of it. Memory is reused where the ops allow
// it: the gradient of the residual stream is one buffer from the loss to the embedding, and
// SwiGLU's gradients overwrite its inputs.
//
// Collectives are differentiated like ops: the gradient of a gather is a reduce-scatter and the
// other way round, of an exchange an exchange; a sum over ranks passes its gradient on, the entry
// of a tensor-parallel region sums it.
//
// With `put_off_weights` the gradients of weights are not appended but returned, to be appended
// later (zero-bubble schedules, Qi et al. 2023, arXiv 2401.10241); nothing they read is overwritten
// before.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "coordinator/compiler/layers/activation_gradients.h"
#include "coordinator/compiler/layers/recompute.h"
#include "coordinator/compiler/layers/trained.h"
#include "coordinator/compiler/state/parameter_gradients.h"

namespace terrace::compiler {

// Of one micro-batch over one chunk. Thread-compatible.
class BackwardPass {
 public:
  // `prefetched`: of the passes of other micro-batches over the chunk, or null (recompute.h).
  BackwardPass(ParameterGradients* parameters, bool put_off_weights, PrefetchedAgain* prefetched,
               Builder* builder)
      : parameters_(*parameters),
        builder_(*builder),
        activations_(builder),
        put_off_weights_(put_off_weights),
        prefetched_(prefetched) {}

  // The gradient of `value` is in `gradient`, which this pass may overwrite.
  void Seed(Slice value, Slice gradient) { activations_.Share(value, gradient); }
  // Segments from the last to the first. INTERNAL when an op has no rule.
  absl::Status Run(const std::vector<Segment>& segments);
  Slice GradientOf(Slice value) const { return activations_.Of(value); }
  std::vector<Node> TakePutOff() { return std::move(put_off_); }

  // For the rules.
  Builder& builder() { return builder_; }
  ActivationGradients& activations() { return activations_; }
  bool puts_off_weights() const { return put_off_weights_; }
  // False also where there is none.
  bool Trains(Slice weight) const {
    return !weight.absent() && parameters_.parameters().Trains(weight, builder_.graph());
  }
  // The gradient slice of a whole weight; *first says whether this contribution writes or updates.
  Slice Parameter(Slice weight, bool* first) { return parameters_.Of(weight, &builder_, first); }
  // For ops that can only add to a gradient. Absent where the weight is, or is not trained.
  Slice ParameterToUpdate(Slice weight, const std::string& text);
  // The value before the GELU that was fused into the product that wrote `slice`; absent when there
  // is none.
  Slice BeforeGelu(Slice slice) const;
  // What `append` appends is the gradient of a weight.
  template <typename F>
  void OfWeights(F append) {
    if (put_off_weights_) builder_.divert = &put_off_;
    append();
    builder_.divert = nullptr;
  }

 private:
  absl::Status RunSegment(const Segment& segment);
  void NoteGelus(const std::vector<Node>& nodes);

  ParameterGradients& parameters_;
  Builder& builder_;
  ActivationGradients activations_;
  const bool put_off_weights_;
  PrefetchedAgain* const prefetched_;
  std::vector<Node> put_off_;
  std::map<int, int> before_gelu_;
};

// autodiff_ranks.cc: rules of nodes that involve other ranks.
void CollectiveRule(const Node& node, BackwardPass& b);
void EnterTensorParallelRule(const Node& node, BackwardPass& b);
void RingAttentionRule(const Node& node, BackwardPass& b);

}  // namespace terrace::compiler
