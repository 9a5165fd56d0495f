// What one micro-batch computes in one layer, in closed form: products and attention at the rates
// of their shapes, norms, residual sums, rotations and activations by the bytes they read and
// write.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coordinator/planner/estimate_stages.h"
#include "coordinator/simulator/compute_time.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

// Seconds.
struct LayerTime {
  double forward = 0;
  double backward = 0;
  double weights = 0;            // of backward: the products that are gradients of weights
  double light = 0;              // of forward: what selective recompute does again
  double attention_forward = 0;  // parts of the first two
  double attention_backward = 0;
};
LayerTime TimeOfLayer(const EstimateModel& model, const v1::Layout& layout,
                      const ComputeTime& compute, const v1::HardwareProfile& profile);

// The head and the loss, both directions.
double HeadSeconds(const EstimateModel& model, const v1::Layout& layout, const ComputeTime& compute,
                   const v1::HardwareProfile& profile);

// How often a micro-batch moves the stage's weights, in f32: where products have rates of their own
// these hold the reads, and what is left is adding to the gradients.
double WeightTraffic(const v1::Layout& layout, const v1::HardwareProfile& profile);

}  // namespace terrace
