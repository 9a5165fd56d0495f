// The sequences of a program: "train" (one optimizer step) and its like of shorter samples
// (proto/program/sequences.h), "eval" (the loss of one micro-batch), "prefill" and "decode" (the
// logits behind new tokens of texts, many or one of each), "score" (those behind each of them),
// "restore" (what others find made of the state: weights gathered from shards, or rounded).
//
// "train" is a straight list: the passes of the stage's schedule, of few micro-batches where the
// rest become iterations of a loop (roll.h), each batch loaded one ahead; gradients reduced as soon
// as they are final (reduction.h); global-norm clipping; AdamW. Gradients are those of the *sum* of
// losses; kGradScale divides by the number of tokens of the whole step, so that accumulation equals
// the large batch. Where the loss is scaled (fp16), it divides by that factor too: no pass of its
// own unscales them.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/compiler/compile.h"
#include "coordinator/compiler/stage.h"
#include "proto/program/sequences.h"

namespace terrace::compiler {

struct TrainOptions {
  ForwardOptions forward;
  std::vector<Pass> schedule;  // of this stage
  int micro_batches = 1;
  int64_t bucket_bytes = 0;
  float clip_grad_norm = 0;
  bool updates_at_once = false;  // UpdatesAtOnce in layout/rules.h
  bool scales_loss = false;      // the loss's gradient is multiplied by the schedule's factor
  // By the job's rule, and by AdamW what a rule of whole matrices leaves out, but for what each
  // parameter has of its own (TensorUpdate).
  kernels::UpdateAttrs update;
  kernels::UpdateAttrs matrix_update;  // by a rule of whole matrices
  bool steps_as_adamw = false;         // train.optimizer.adjust_lr match_rms_adamw
  std::string name = std::string(kTrain);
  std::atomic<int64_t>* nodes_left = nullptr;  // of all stages together; none: no limit
};

// For samples of options.forward.sequence tokens. RESOURCE_EXHAUSTED as soon as no nodes are left.
absl::Status AppendTrain(const StageContext& context, const TrainOptions& options, Graph* graph);
void AppendEval(const StageContext& context, const ForwardOptions& options, Graph* graph);
// The sequences that generate, and the room for keys and values of options.batch texts that they
// share. REQUIRES: one stage, one tensor- and one context-parallel rank.
void AppendGenerate(const StageContext& context, const ForwardOptions& options,
                    const GenerateShape& shape, Graph* graph);
// Nothing when no weights are gathered.
void AppendRestore(const StageContext& context, Graph* graph);

}  // namespace terrace::compiler
