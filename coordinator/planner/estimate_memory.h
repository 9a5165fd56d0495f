// The closed form of a layout's memory, for ranking candidates and for choosing how much is
// computed again or rests elsewhere before any is compiled. A test holds it to a few percent of
// what the compiler's arenas take.
//
// Weights, gradients and Adam's moments in f32, of which ZeRO stage 1, 2 and 3 shares the moments
// with a copy of the weights, then the gradients, then all (Rajbhandari et al. 2020, arXiv
// 1910.02054); activations of as many passes as the schedule holds at once, tensor- and
// sequence-parallel as in Korthikanti et al. 2022 (arXiv 2205.05198), layer by layer. The peak is
// the largest of three moments: when the first backward pass begins (all activations, the head's
// gradient, the loss), after its first layers, and when the last one ends (all gradients). What is
// offloaded rests on its tier by its parts; the device keeps what passes (two layers' weights and
// gradients), the host the chunks of the optimizer.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "coordinator/planner/estimate_stages.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

struct MemoryEstimate {
  int64_t state_bytes = 0;  // weights and optimizer moments
  int64_t gradient_bytes = 0;
  int64_t activation_bytes = 0;  // kept for the backward pass, with what is computed again
  int64_t workspace_bytes = 0;   // of the loss, or of a layer's backward pass
  int64_t host_bytes = 0;        // off the device
  int64_t nvme_bytes = 0;
  // Of the device.
  int64_t total() const {
    return state_bytes + gradient_bytes + activation_bytes + workspace_bytes;
  }
};

// Bytes that a layer keeps of one pass, by what is computed again of it.
struct LayerBytes {
  int64_t none = 0;
  int64_t selective = 0;
  int64_t block = 0;  // its input
};

// Layers of a stage by what is computed again of them: none, selective, block.
using RecomputeCounts = std::array<int64_t, 3>;

// Layouts are those that CheckLayout passes, completed. Borrows nothing. Thread-safe: immutable.
class MemoryEstimator {
 public:
  explicit MemoryEstimator(EstimateModel model) : model_(std::move(model)) {}

  // Of one rank of the stage that needs most.
  MemoryEstimate Memory(const v1::Layout& layout) const;
  // Of one rank of each stage.
  std::vector<MemoryEstimate> Stages(const v1::Layout& layout) const;
  // Of one rank of a stage, as if layout.recompute_layers had `counts` of its layers.
  MemoryEstimate StageMemory(const v1::Layout& layout, const EstimatedStage& stage,
                             const RecomputeCounts* counts = nullptr) const;
  // Of one stage: what it keeps for its backward passes.
  int64_t ActivationBytes(const v1::Layout& layout, const EstimatedStage& stage) const;

  LayerBytes BytesOfLayer(const v1::Layout& layout) const;
  // Passes over a model chunk whose activations a stage holds at once.
  static int64_t PassesHeld(const v1::Layout& layout, int64_t stage);
  const EstimateModel& model() const { return model_; }

 private:
  struct Activations {     // of a stage
    int64_t kept = 0;      // of all passes held, with what is kept for put-off weight gradients
    int64_t one_pass = 0;  // of one of them over a chunk
    int64_t one_layer = 0;
    int64_t again = 0;   // of what is computed again at a time
    int64_t whole = 0;   // of one layer in its backward pass
    int64_t passes = 0;  // held
  };
  Activations ActivationsOf(const v1::Layout& layout, const EstimatedStage& stage,
                            const RecomputeCounts* counts) const;
  // What a layer's weight gradients need of one pass, where they are put off.
  int64_t PutOffBytes(const v1::Layout& layout) const;
  MemoryEstimate OnDevice(const v1::Layout& layout, const EstimatedStage& stage,
                          const Activations& kept) const;
  // Of the other tiers' bytes: what copies pass through (compiler/staging.h).
  struct Staging {
    int64_t of_passes = 0, of_step = 0;
  };
  Staging StagingBytes(const v1::Layout& layout, int64_t share) const;
  void AddOtherTiers(const v1::Layout& layout, const EstimatedStage& stage, const Activations& kept,
                     MemoryEstimate* memory) const;

  const EstimateModel model_;
};

}  // namespace terrace
