// Measures this machine for plans: kernels, memory, copies, instructions, links and, where a folder
// is named, its drive.
//
// Used on one thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "proto/v1/hardware.pb.h"
#include "worker/probe/cases.h"

namespace terrace {

struct ProbeRequest {
  int threads = 1;  // of a rank
  ProbeDepth depth = ProbeDepth::kBrief;
  std::string nvme;  // folder; empty: no drive is measured
};

// What is being measured, and the share of all that is done.
using ProbeWatcher = std::function<void(std::string_view what, double done)>;

struct MeasuredMachine {
  v1::HardwareProfile profile;
  std::string cut_short;  // why fewer turns were made than the depth asks for; empty: all were
  double spread = 1;      // how far turns of the same calls lay apart (rates.h)
};
// `version`: of this program, whose kernels are measured.
absl::StatusOr<MeasuredMachine> MeasureMachine(const ProbeRequest& request,
                                               std::string_view version,
                                               const ProbeWatcher& watcher);

}  // namespace terrace
