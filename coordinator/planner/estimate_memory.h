// The closed form of a layout's memory: good to about a tenth for a layout without splits and to a
// quarter otherwise, for ranking candidates before any is compiled.
//
// Weights, gradients and Adam's moments in f32, of which ZeRO stage 1, 2 and 3 shares the moments
// with a copy of the weights, then the gradients, then all (Rajbhandari et al. 2020, arXiv
// 1910.02054); activations of as many micro-batches as the schedule holds at once, tensor- and
// sequence-parallel as in Korthikanti et al. 2022 (arXiv 2205.05198). What is offloaded rests on
// its tier by its parts; the device keeps what passes (two layers' weights and gradients), the host
// the chunks of the optimizer.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include "coordinator/planner/estimate_stages.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

struct MemoryEstimate {
  int64_t state_bytes = 0;  // weights and optimizer moments
  int64_t gradient_bytes = 0;
  int64_t activation_bytes = 0;  // kept for the backward pass, with what is computed again
  int64_t host_bytes = 0;        // off the device
  int64_t nvme_bytes = 0;
  // Of the device.
  int64_t total() const { return state_bytes + gradient_bytes + activation_bytes; }
};

// Layouts are those that CheckLayout passes, completed. Borrows nothing. Thread-safe: immutable.
class MemoryEstimator {
 public:
  explicit MemoryEstimator(EstimateModel model) : model_(std::move(model)) {}

  // Of one rank of the stage that needs most.
  MemoryEstimate Memory(const v1::Layout& layout) const;
  // Of one stage: what it keeps for its backward passes.
  int64_t ActivationBytes(const v1::Layout& layout, const EstimatedStage& stage) const;

 private:
  MemoryEstimate StageMemory(const v1::Layout& layout, const EstimatedStage& stage) const;
  // What the layout keeps of a class of memory on other tiers is taken off the device.
  void Offload(const v1::Layout& layout, const EstimatedStage& stage, MemoryEstimate* memory) const;
  int64_t LayerTokenBytes(const v1::Layout& layout) const;

  const EstimateModel model_;
};

}  // namespace terrace
