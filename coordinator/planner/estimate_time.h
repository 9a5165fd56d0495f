// The closed form of a layout's step time, for ranking candidates before any is compiled.
//
// Arithmetic, weight traffic, the bubble (p - 1) / m and its fractions, ring collectives; copies of
// weights and gradients hide behind a pass or make it longer, and the offloaded optimizer takes as
// long as the slowest of its streams.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "coordinator/planner/estimate_memory.h"
#include "coordinator/planner/estimate_stages.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

// Layouts are those that CheckLayout passes, completed. Borrows nothing. Thread-safe: immutable.
class TimeEstimator {
 public:
  explicit TimeEstimator(const EstimateModel& model) : model_(model), memory_(model) {}

  double StepSeconds(const v1::Layout& layout, const v1::HardwareProfile& profile) const;

 private:
  double OffloadSeconds(const v1::Layout& layout, const EstimatedStage& stage, double busy_seconds,
                        const v1::HardwareProfile& profile) const;
  double ComputeSeconds(const v1::Layout& layout, const EstimatedStage& stage,
                        const v1::HardwareProfile& profile) const;
  double LayerCommunicationSeconds(const v1::Layout& layout, const EstimatedStage& stage,
                                   const v1::HardwareProfile& profile) const;
  double GradientSeconds(const v1::Layout& layout, const EstimatedStage& stage,
                         const v1::HardwareProfile& profile) const;

  const EstimateModel model_;
  const MemoryEstimator memory_;
};

}  // namespace terrace
