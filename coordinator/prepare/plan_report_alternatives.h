// Why a layout that was compared is not the one chosen, in one sentence: by how much it is slower
// and what takes the time (a bubble, communication or offload that nothing hides, recompute, ...),
// or which tier of which stage it does not fit into, and by how many bytes.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "coordinator/planner/planner.h"
#include "coordinator/prepare/evaluate.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

// Seconds of a step on the compute streams, on average over the stages; they sum to the step.
struct StepParts {
  double computation = 0;  // but for the next two
  double recompute = 0;
  double optimizer = 0;
  double communication = 0;  // exposed, as the next
  double offload = 0;
  double bubble = 0;
  double loading = 0;
};
StepParts PartsOf(const Simulation& simulation);

// The sentences of a layout that is compared with the chosen one.
class WhyNot {
 public:
  // `budget` has the profile that the times are of. Both stay the caller's.
  WhyNot(const v1::JobSpec& spec, const Budget& budget, const Evaluated& chosen);

  std::string Of(const Evaluated& other) const;

 private:
  std::string TooLarge(const Evaluated& other) const;
  std::string Slower(const Evaluated& other, double seconds) const;
  std::string NotFaster(const Evaluated& other, double seconds) const;

  const Budget& budget_;
  const TierLimits limits_;
  const Evaluated& chosen_;
  const StepParts chosen_parts_;
};

// Says of each alternative whether nothing that fits is both faster and smaller, be it compiled or
// known by closed form.
void MarkFront(v1::Plan* plan);

// Of a layout that was only compared by closed form and takes less memory.
std::string SmallerByClosedForm(double chosen_seconds, double seconds, int64_t chosen_bytes,
                                int64_t bytes);

}  // namespace terrace
