// How long one instruction takes on a time model when nothing else is in its way: computations as
// compute_time.h says; collectives and transfers as link_time.h says;
// copies by the rate between their tiers. What instructions beside each other cost is
// contention.h's.
//
// Thread-safe once made.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/statusor.h"
#include "coordinator/simulator/compute_time.h"
#include "proto/v1/plan.pb.h"
#include "proto/v1/program.pb.h"

namespace terrace {

class InstructionTime {
 public:
  // Borrows the profile.
  explicit InstructionTime(const v1::HardwareProfile& profile)
      : profile_(profile), compute_(profile) {}

  // INVALID_ARGUMENT when an operand or an op does not decode or they do not fit each other.
  // `cached`: the part of its operands that it finds in the last-level cache (cache_reuse.h).
  absl::StatusOr<double> Seconds(const v1::Program& program, const v1::Instruction& instruction,
                                 double cached = 0) const;
  // Of these seconds, the part that is in the way of computation beside it: 0 to 1, and 0 where
  // nothing is communicated.
  double Contention(const v1::Program& program, const v1::Instruction& instruction,
                    double seconds) const;
  // Until it begins after what it waited for on another stream.
  double WakeSeconds(const v1::Instruction& instruction) const;

 private:
  const v1::HardwareProfile& profile_;
  const ComputeTime compute_;
};

}  // namespace terrace
