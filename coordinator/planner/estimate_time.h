// The closed form of a layout's step time, for ranking candidates before any is compiled.
//
// Products and attention at the rates that the profile has for their shapes, the rest by memory's
// bandwidth (estimate_layer_time.h); the bubble (p - 1) / m and its fractions; collectives by where
// their members stand (link_time.h), hidden behind computation where links have engines of their
// own and longer than it; copies of weights and gradients hide behind a pass or make it longer, and
// the offloaded optimizer takes as long as the slowest of its streams.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coordinator/planner/compute_time.h"
#include "coordinator/planner/estimate_layer_time.h"
#include "coordinator/planner/estimate_memory.h"
#include "coordinator/planner/estimate_stages.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

// Layouts are those that CheckLayout passes, completed. Reads the profile once: make one for many
// layouts. Borrows nothing. Thread-safe: immutable.
class TimeEstimator {
 public:
  TimeEstimator(const EstimateModel& model, const v1::HardwareProfile& profile);

  double StepSeconds(const v1::Layout& layout) const;

 private:
  double StageSeconds(const v1::Layout& layout, const EstimatedStage& stage,
                      const LayerTime& layer) const;
  // One way round the ranks whose numbers are `stride` apart.
  double RingSeconds(double bytes, int64_t members, int64_t stride) const;
  double OffloadSeconds(const v1::Layout& layout, const EstimatedStage& stage,
                        double busy_seconds) const;
  double LayerCommunicationSeconds(const v1::Layout& layout, const EstimatedStage& stage,
                                   const LayerTime& layer) const;
  double GradientSeconds(const v1::Layout& layout, const EstimatedStage& stage, double busy) const;

  const EstimateModel model_;
  const MemoryEstimator memory_;
  const v1::HardwareProfile profile_;
  const ComputeTime compute_;
};

}  // namespace terrace
