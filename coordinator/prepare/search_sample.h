// One layout for comparing, nearly exactly and cheaply: compiled with few of its micro-batches,
// packed quickly, not checked.
//
// Once a pipeline is full a step repeats itself: it holds the same from one micro-batch to the
// next, and each takes the same time. So two short steps, of which one has a few micro-batches
// more, tell the bytes and the time of a step of any length. Layouts of few micro-batches are
// compiled whole, and so is gpipe, which holds them all.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/prepare/evaluate.h"

namespace terrace {

// Micro-batches of the two steps that are compiled for a layout of many; both 0: it is compiled
// whole.
struct SampleSizes {
  int64_t shorter = 0;
  int64_t longer = 0;
};
SampleSizes SizesOf(const v1::Layout& layout);

// Without its simulation. INVALID_ARGUMENT when the layout cannot be compiled.
absl::StatusOr<Evaluated> Sample(const v1::JobSpec& spec, const Model& model, const Budget& budget,
                                 const v1::Layout& layout, const SampleSizes& sizes);

// Bytes of a stage on the device, and as CountBytes(), with the inputs of all micro-batches, which
// wait from the begin of the step on.
int64_t StageBytes(const Evaluated& evaluated, size_t stage);
void CountSampleBytes(const v1::JobSpec& spec, const Budget& budget, Evaluated* evaluated);

// Fills `simulation`, of samples and of whole steps.
absl::Status SimulateStep(const v1::HardwareProfile& profile, Evaluated* evaluated);

}  // namespace terrace
