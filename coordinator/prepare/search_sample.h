// One layout for comparing, nearly exactly and cheaply: compiled with few of its micro-batches,
// packed quickly, not checked.
//
// How many of them, and why those tell the whole step: coordinator/planner/sample_sizes.h.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/planner/sample_sizes.h"
#include "coordinator/prepare/evaluate.h"

namespace terrace {

// Without its simulation. INVALID_ARGUMENT when the layout cannot be compiled, RESOURCE_EXHAUSTED
// when one of its steps takes more than `instructions_max`, if that is not 0.
absl::StatusOr<Evaluated> Sample(const v1::JobSpec& spec, const Model& model, const Budget& budget,
                                 const v1::Layout& layout, const SampleSizes& sizes,
                                 int64_t instructions_max = 0);

// What each micro-batch that was not compiled adds is what the longer of a sample's two steps has
// more than the shorter: by this factor. REQUIRES: a sample.
double TimesBeyond(const Evaluated& sample);

// Inputs that were not compiled and wait on the device from the begin of the step on; 0 of a whole
// step.
int64_t MissingInputBytes(const Evaluated& evaluated, size_t stage);

// Bytes of a stage on the device, and as CountBytes(), with the inputs of all micro-batches.
int64_t StageBytes(const Evaluated& evaluated, size_t stage);
void CountSampleBytes(const v1::JobSpec& spec, const Budget& budget, Evaluated* evaluated);

// A better packing may make it fit its device.
bool NearlyFits(const Evaluated& one, const Budget& budget);

// Fills `simulation`, of samples and of whole steps. Of a sample its seconds are the whole step's,
// those of its stages are not.
absl::Status SimulateStep(const v1::HardwareProfile& profile, Evaluated* evaluated);

}  // namespace terrace
