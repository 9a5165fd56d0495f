// The moments of a step at which a stage's device memory is at its largest, by the closed form:
// when the first backward pass begins (all activations, the head's gradient, the loss), after its
// first layers, when the last one ends (all gradients), and where whole weights come from other
// tiers.
//
// Of a class that rests elsewhere the device has what passes through: a layer's weights or
// activations, gradients of a few layers that come back to be added to.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "coordinator/planner/estimate_stages.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

struct MemoryEstimate {
  int64_t state_bytes = 0;  // weights and optimizer moments
  int64_t gradient_bytes = 0;
  int64_t activation_bytes = 0;  // kept for the backward pass, with what is recomputed
  int64_t workspace_bytes = 0;   // of the loss, or of a layer's backward pass
  int64_t host_bytes = 0;        // off the device
  int64_t nvme_bytes = 0;
  // Of the device.
  int64_t total() const {
    return state_bytes + gradient_bytes + activation_bytes + workspace_bytes;
  }
};

struct HeldActivations {  // of a stage
  int64_t kept = 0;       // of all passes held, with what is kept for put-off weight gradients
  int64_t one_pass = 0;   // of one of them over a chunk
  int64_t one_layer = 0;
  int64_t again = 0;   // of what is recomputed at a time
  int64_t whole = 0;   // of one layer in its backward pass
  int64_t passes = 0;  // held
  // Of what is kept, the part that never leaves the device: what other stages sent
  // (compiler/tiers/offload.h).
  double stays = 0;
};

// Of the device alone. `kept` counts what rests on other tiers too.
MemoryEstimate LargestMoment(const EstimateModel& model, const v1::Layout& layout,
                             const EstimatedStage& stage, const HeldActivations& kept);

// A part of a class of memory.
int64_t Part(double share, int64_t bytes);
// What weights of so many f32 bytes take: as rounded copies that last beside their masters, as
// passes read them, as the optimizer updates them, and their gradients.
int64_t InRounded(const v1::Layout& layout, int64_t bytes);
int64_t InWeights(const v1::Layout& layout, int64_t bytes);
int64_t InMasters(const v1::Layout& layout, int64_t bytes);
int64_t InGradients(const v1::Layout& layout, int64_t bytes);
// With ZeRO 1 and 2 whole weights stay on the device, gathered once a step.
bool WholeFromShards(const v1::Layout& layout);
// What passes read is something else than the masters.
bool MastersRestWithMoments(const v1::Layout& layout);
// Weight gradients are computed apart from those of inputs.
bool SplitsBackward(const v1::Layout& layout);

}  // namespace terrace
