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

#include "coordinator/planner/estimate_layer_time.h"
#include "coordinator/planner/estimate_memory.h"
#include "coordinator/planner/estimate_stages.h"
#include "coordinator/simulator/compute_time.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

// What engines do differently that the closed form can tell apart; ours by default. Others are
// compared by their published runs.
struct EngineTraits {
  double gathered_element_bytes = kF32Bytes;  // of weights that ZeRO gathers
  // ZeRO-1 and 2 gather the new weights beside the next step's first pass.
  bool renews_beside_next_step = false;
};

// What a micro-batch computes: the same for layouts that differ in schedule, ZeRO, recompute and
// offload alone.
struct PassTime {
  LayerTime layer;
  double head = 0;  // seconds, with the loss, both directions
};

// Layouts are those that CheckLayout passes, completed. Reads the profile once: make one for many
// layouts. Borrows nothing. Thread-safe: immutable.
class TimeEstimator {
 public:
  TimeEstimator(const EstimateModel& model, const v1::HardwareProfile& profile,
                const EngineTraits& traits = {});

  double StepSeconds(const v1::Layout& layout) const {
    return StepSeconds(layout, TimeOfPass(layout));
  }

  PassTime TimeOfPass(const v1::Layout& layout) const;
  double StepSeconds(const v1::Layout& layout, const PassTime& pass) const;

 private:
  double StageSeconds(const v1::Layout& layout, const EstimatedStage& stage,
                      const PassTime& pass) const;
  // One way round the ranks whose numbers are `stride` apart.
  double RingSeconds(double bytes, int64_t members, int64_t stride) const;
  // The same of an all-to-all.
  double ExchangeSeconds(double bytes, int64_t members, int64_t stride) const;
  double CodedSumSeconds(const v1::Layout& layout, double elements, double layers) const;
  struct Busy {  // with the passes of a step, in each direction
    double forward = 0, backward = 0;
  };
  double OffloadSeconds(const v1::Layout& layout, const EstimatedStage& stage,
                        const Busy& busy) const;
  double LayerCommunicationSeconds(const v1::Layout& layout, const EstimatedStage& stage,
                                   const LayerTime& layer) const;
  double GradientSeconds(const v1::Layout& layout, const EstimatedStage& stage, double busy) const;
  // What a collective of `bytes` that takes so many seconds alone adds to computation beside it.
  double ExposedSeconds(double seconds, double beside, double bytes) const;

  const EstimateModel model_;
  const MemoryEstimator memory_;
  const v1::HardwareProfile profile_;
  const ComputeTime compute_;
  const EngineTraits traits_;
};

}  // namespace terrace
