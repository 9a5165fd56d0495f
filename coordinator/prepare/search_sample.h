// One layout for comparing, nearly exactly and cheaply: compiled with few of its micro-batches,
// not checked.
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

// INVALID_ARGUMENT when the whole step would be too long to compile. REQUIRES: a sample.
absl::Status CheckWholeStep(const Evaluated& sample);

// Bytes of a stage on the device, and as CountBytes(), with what the whole step has more
// (sample_bytes.h).
int64_t StageBytes(const Evaluated& evaluated, size_t stage);
void CountSampleBytes(const v1::JobSpec& spec, const Budget& budget, Evaluated* evaluated);

// Fills `simulation`, of samples and of whole steps. Of a sample its seconds are the whole step's,
// those of its stages are not.
absl::Status SimulateStep(const v1::HardwareProfile& profile, Evaluated* evaluated);

}  // namespace terrace
