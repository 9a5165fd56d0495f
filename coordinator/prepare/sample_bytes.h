// What the whole step holds beyond a sample of it (search_sample.h), at the peak of a stage.
//
// The inputs of all micro-batches wait on the device from the begin of the step on. Once a pipeline
// is full it holds no more than that, but gpipe holds the activations of all micro-batches, so that
// its peak is, sooner or later, where most of them are alive: what lives then grows by as much with
// each micro-batch as the sample's two steps differ by.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "coordinator/prepare/evaluate.h"
#include "coordinator/prepare/memory_peak.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// By class, of a stage's arena on the tier; some may be negative, where the peak of the whole step
// is at another moment, but not their sum. Empty of a whole step.
BytesByClass MissingBytes(const Evaluated& evaluated, size_t stage, v1::Tier tier);

// Bytes of a stage: what it reserves on the tier, what the device holds beside, what is missing.
int64_t BytesOf(const Evaluated& evaluated, size_t stage, v1::Tier tier);

}  // namespace terrace
