// Closed forms of a layout's memory (estimate_memory.h) and time (estimate_time.h) together.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "coordinator/model/model.h"
#include "coordinator/planner/estimate_memory.h"
#include "coordinator/planner/estimate_time.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

// Layouts are those that CheckLayout passes, completed. Borrows nothing. Thread-safe: immutable.
class Estimator {
 public:
  Estimator(const v1::JobSpec& spec, const Model& model) : model_(spec, model), memory_(model_) {}

  // Of one rank of the stage that needs most.
  MemoryEstimate Memory(const v1::Layout& layout) const { return memory_.Memory(layout); }
  int64_t DeviceBytes(const v1::Layout& layout) const { return Memory(layout).total(); }

  // For many layouts make one TimeEstimator.
  double StepSeconds(const v1::Layout& layout, const v1::HardwareProfile& profile) const {
    return TimeEstimator(model_, profile).StepSeconds(layout);
  }

 private:
  const EstimateModel model_;
  const MemoryEstimator memory_;
};

}  // namespace terrace
