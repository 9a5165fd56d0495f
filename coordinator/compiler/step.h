// The sequences of a program: "train" (one optimizer step), "eval" (the loss of one micro-batch),
// "infer" (the logits of one position).
//
// "train" is unrolled: the inputs of all micro-batches, then forward and backward of each,
// gradients accumulating; the all-reduce of each gradient bucket as soon as it is final;
// global-norm clipping; AdamW. Gradients are those of the *sum* of losses; kGradScale divides by
// the number of tokens of the whole step, so that accumulation equals the large batch.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "coordinator/compiler/forward.h"

namespace terrace::compiler {

struct TrainOptions {
  ForwardOptions forward;
  int micro_batches = 1;
  int64_t bucket_bytes = 0;
  int group = kNone;  // over which gradients are reduced; kNone with one rank
  float clip_grad_norm = 0;
  kernels::AdamwAttrs adamw;  // weight_decay of those parameters that decay
};

absl::Status AppendTrain(const Model& model, const Parameters& parameters,
                         const TrainOptions& options, Graph* graph);
void AppendEval(const Model& model, const Parameters& parameters, const ForwardOptions& options,
                int group, Graph* graph);
void AppendInfer(const Model& model, const Parameters& parameters, const ForwardOptions& options,
                 Graph* graph);

}  // namespace terrace::compiler
