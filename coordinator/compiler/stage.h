// The passes of one pipeline stage: forward, backward and weight-gradient passes of one micro-batch
// over one of its model chunks, with what they receive from and send to other stages.
//
// Thread-compatible. Everything in StageContext is borrowed.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/compiler/layers/autodiff.h"
#include "coordinator/compiler/layers/forward.h"
#include "coordinator/compiler/pipeline/schedule.h"

namespace terrace::compiler {

// What is fixed for all passes of a stage.
struct StageContext {
  const Model& model;
  const v1::Layout& layout;
  const Parallel& parallel;
  const Parameters& parameters;
  ScheduleShape shape;
  int stage = 0;
  std::vector<ChunkRange> chunks;   // of the whole model, in its order
  int first_trained = 0;            // of these, the first with a weight that is trained
  int first_trained_layer = kNone;  // of the model (FirstTrainedLayer)
  std::vector<int> retire;          // of the passes of "train" (SendsRetire in schedule.h)

  const ChunkRange& ChunkOf(int chunk) const { return chunks[ModelChunk(shape, stage, chunk)]; }
  // All micro-batches pass a chunk one after the other (kBreadthFirst).
  bool InRuns() const { return shape.name == kBreadthFirst; }
  bool HasFirst() const;
  bool HasLast() const;
};

// REQUIRES: something is trained.
int FirstTrained(const Model& model, const v1::OptimizerSpec& optimizer,
                 const std::vector<ChunkRange>& chunks);

// The gradients of a step, by scope (parameter_gradients.h).
class GradientScopes {
 public:
  // `in_runs`: all micro-batches pass a chunk one after the other, and share what is reduced then.
  GradientScopes(const Parameters& parameters, const Parallel& parallel, bool in_runs)
      : parameters_(parameters), parallel_(parallel), in_runs_(in_runs) {}

  ParameterGradients& Of(int micro_batch, int chunk);
  const std::vector<std::unique_ptr<ParameterGradients>>& all() const { return scopes_; }

 private:
  const Parameters& parameters_;
  const Parallel& parallel_;
  const bool in_runs_;
  std::map<std::pair<int, int>, size_t> by_pass_;
  std::vector<std::unique_ptr<ParameterGradients>> scopes_;
};

class StagePasses {
 public:
  StagePasses(const StageContext& context, const ForwardOptions& forward, Builder* builder)
      : context_(context), forward_options_(forward), builder_(*builder) {}

  // One forward pass. `gradients`: keep what the backward pass needs, and begin it at the loss;
  // null for evaluation.
  void RunForward(int micro_batch, int chunk, const BatchSlices& batch,
                  ParameterGradients* gradients);
  // After the forward pass. With put_off_weights, RunWeights must follow.
  absl::Status RunBackward(int micro_batch, int chunk, bool put_off_weights,
                           ParameterGradients* gradients);
  void RunWeights(int micro_batch, int chunk);

 private:
  // A micro-batch between the passes over one chunk.
  struct Flight {
    std::vector<Segment> segments;
    Slice input, output;  // of the residual stream; output is the hidden state on the last chunk
    Slice reference;      // of pairs: the output of the reference
    Slice doutput;        // known from the loss
    Slice dinput;
    std::vector<Node> put_off;
  };

  // A run of passes over one chunk in one direction begins, or goes on.
  void BeginPass(v1::Phase phase, int chunk);
  int DoneBy() const;
  Flight& FlightOf(int micro_batch, int chunk) { return flights_[{micro_batch, chunk}]; }
  // Runs `append` as one segment of the flight.
  template <typename F>
  void Record(Recompute recompute, bool keep, Flight* flight, F append);
  Slice Enter(int micro_batch, int model_chunk, Forward* forward, bool reference);
  // Sends the output to the next chunk where that is on another stage.
  void Leave(int chunk, Slice x, const char* name);
  // That of the output of a chunk.
  Slice GradientFrom(int micro_batch, int model_chunk, Slice output);

  const StageContext& context_;
  const ForwardOptions forward_options_;
  Builder& builder_;
  std::map<std::pair<int, int>, Flight> flights_;  // by micro-batch and chunk
  // They belong to the present run; without runs each pass is one.
  std::optional<std::pair<v1::Phase, int>> run_;  // and chunk
  std::optional<Forward> forward_;
  PrefetchedAgain prefetched_;
};

}  // namespace terrace::compiler
