// Closed forms of a layout's memory and time: good to about a tenth, for ranking candidates before
// any is compiled.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "coordinator/model/model.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

struct MemoryEstimate {
  int64_t state_bytes = 0;  // weights and optimizer moments, f32
  int64_t gradient_bytes = 0;
  int64_t activation_bytes = 0;  // of one micro-batch, at the end of its forward pass
  int64_t total() const { return state_bytes + gradient_bytes + activation_bytes; }
};

MemoryEstimate EstimateMemory(const v1::JobSpec& spec, const Model& model,
                              const v1::Layout& layout);

double EstimateStepSeconds(const v1::JobSpec& spec, const Model& model, const v1::Layout& layout,
                           const v1::HardwareProfile& profile);

}  // namespace terrace
