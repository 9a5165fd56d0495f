// The closed form of a layout's memory, for ranking candidates and for choosing how much is
// recomputed or rests elsewhere before any is compiled. A test holds it to a few percent of
// what the compiler's arenas take.
//
// Weights, gradients and Adam's moments in their formats, of which ZeRO stage 1, 2 and 3 shares the
// moments with a copy of the weights, then the gradients, then all (Rajbhandari et al. 2020, arXiv
// 1910.02054); activations of as many passes as the schedule holds at once, tensor- and
// sequence-parallel as in Korthikanti et al. 2022 (arXiv 2205.05198), layer by layer. The peak is
// the largest of a few moments (estimate_moments.h). What is offloaded rests on its tier by its
// parts; the host has the chunks of the optimizer besides. tests/bench/results/closed_form-*.md
// tells how far all this is off, by kind of layout.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "coordinator/planner/estimate_moments.h"
#include "coordinator/planner/estimate_stages.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

// Bytes that a layer keeps of one pass, by what is recomputed of it, before they are encoded
// (formats.activation) or after it.
struct LayerBytes {
  int64_t none = 0;
  int64_t selective = 0;
  int64_t block = 0;  // its input
};

// Layers of a stage by what is recomputed of them: none, selective, block.
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
  // Of one stage: what it keeps for its backward passes and may leave the device.
  int64_t OffloadedBytes(const v1::Layout& layout, const EstimatedStage& stage) const;

  LayerBytes BytesOfLayer(const v1::Layout& layout) const;
  // What encoding and decoding the activations of one pass over a stage moves.
  double EncodedTraffic(const v1::Layout& layout, const EstimatedStage& stage) const;
  // Passes over a model chunk whose activations a stage holds at once.
  static int64_t PassesHeld(const v1::Layout& layout, int64_t stage);
  const EstimateModel& model() const { return model_; }

 private:
  // With so many bytes an element of what is not f32.
  LayerBytes BytesOfLayer(const v1::Layout& layout, double element_bytes) const;
  HeldActivations ActivationsOf(const v1::Layout& layout, const EstimatedStage& stage,
                                const RecomputeCounts* counts) const;
  // What a layer's weight gradients need of one pass, where they are put off.
  int64_t PutOffBytes(const v1::Layout& layout) const;
  // Of the other tiers' bytes: what copies pass through (compiler/staging.h).
  struct Staging {
    int64_t of_passes = 0, of_step = 0;
  };
  Staging StagingBytes(const v1::Layout& layout, const EstimatedStage& stage, int64_t share) const;
  void AddOtherTiers(const v1::Layout& layout, const EstimatedStage& stage,
                     const HeldActivations& kept, MemoryEstimate* memory) const;

  const EstimateModel model_;
};

}  // namespace terrace
