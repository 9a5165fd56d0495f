// From a model and a layout to one program per pipeline stage, every buffer at a fixed offset. The
// passes in order:
//
//   groups.h      the grid of ranks and the groups they communicate in
//   parameters.h  weights and optimizer state: who holds which part of which tensor (partition.h)
//   schedule.h    the order of the stage's passes over micro-batches and model chunks
//   step.h        the sequences "train" (one a bucket), "eval", "decode", "restore" and others,
//   made of:
//     stage.h       one pass of a micro-batch over a chunk, with what it receives and sends
//     forward.h     its forward pass, split over tensor- and context-parallel ranks
//     recompute.h   what of it is recomputed before
//     autodiff.h    its backward pass, one rule per op
//     reduction.h   gradients summed over ranks while backward still runs (buckets.h, ZeRO)
//     insertions.h  fetches moved ahead of their use
//   workspace.h   scratch of each instruction
//   streams.h     streams and waits
//   emit.h        the program, its state manifest and initializers
//   place.h       liveness under happens-before, packing, offsets
//   dynamic.h     in caching mode: no offsets for step buffers on the device
//
// Pure and deterministic: the same input gives the same bytes. The result is not trusted:
// proto/check/program_check.h checks it. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/model/model.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/plan.pb.h"
#include "proto/v1/program.pb.h"

namespace terrace {

struct CompileInput {
  const v1::JobSpec* spec = nullptr;  // validated
  const Model* model = nullptr;
  v1::Layout layout;               // complete: no zero fields
  int64_t external_bytes = 0;      // allowed outside the arenas
  int64_t device_limit_bytes = 0;  // 0: none; not enforced here (the caller sees arena bytes)
  // Of the training steps of all stages together; more are given up early. 0: as many as programs
  // may have.
  int64_t instructions_max = 0;
  // Writes all micro-batches out where the step could be a loop, so that both can be compared.
  bool straight = false;
};

// INVALID_ARGUMENT when the layout asks for what this compiler cannot do, RESOURCE_EXHAUSTED when
// it takes more instructions than are asked for.
absl::StatusOr<std::vector<v1::Program>> Compile(const CompileInput& input);

// INVALID_ARGUMENT when a step of one stage would be too long to stream and to check; Compile()
// refuses it too.
absl::Status CheckStepLength(int64_t buffers, int64_t instructions);

struct InferInput {
  const Model* model = nullptr;
  std::string job;  // named in the program
  int64_t sequence_length = 0;
  int64_t batch = 1;      // sequences
  v1::Layout precisions;  // its fields of that name alone count
  int threads = 1;
};
struct GenerateShape {
  int64_t max_length = 0;      // tokens of a text
  int64_t prefill_tokens = 0;  // new ones of a text that "prefill" takes at a time, at most
  int64_t score_tokens = 0;    // and "score"; 0: there is no such sequence
};
// A program with the weights, room for the keys and values of `batch` texts, and sequences that
// take new tokens of each text by LOAD_PROMPT and give logits: "prefill" and "decode", which takes
// one, those of one row of each text, "score" those of all rows. No gradients, no optimizer state.
// The input's sequence_length is ignored.
absl::StatusOr<v1::Program> CompileGenerate(const InferInput& input, GenerateShape shape);
// A program of the same kind with "eval": the loss of `batch` rows of sequence_length tokens.
absl::StatusOr<v1::Program> CompileEval(const InferInput& input);

}  // namespace terrace
