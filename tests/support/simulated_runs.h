// What a plan would say of a published run: Terrace's own programs of the run's layout, compiled
// (of many micro-batches, a few) and simulated on the run's profile. They differ from the closed
// form where Terrace does something else than the framework that was measured: it recomputes no
// product whose result the backward pass does not read, and gathers weights in fp32.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/statusor.h"
#include "tests/support/published_runs.h"

namespace terrace {

// Tokens a second and device. INVALID_ARGUMENT when the layout cannot be compiled.
// REQUIRES: not_expressible is empty and beyond_the_spec is false.
absl::StatusOr<double> SimulatedTokensPerSecond(const PublishedRun& run);

}  // namespace terrace
