// What-if plans, for hardware that is not here: `--cluster` of plan and explain. Nothing is
// measured and nothing can be run on it; the catalogue or the user's file says what there is.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "coordinator/prepare/prepare.h"

namespace terrace {

struct WhatIfJob {
  v1::JobSpec spec;
  Budget budget;
  std::string why_not_runnable;  // of its devices; empty: jobs can run there
};

// `cluster`: as hardware/cluster.h reads it, or the path of a YAML file (with a slash, or ending in
// .yaml or .yml).
absl::StatusOr<WhatIfJob> ReadWhatIfJob(const std::string& spec_path, const std::string& cluster);

// The same, prepared. `tell`: as of PrepareAnyway().
absl::StatusOr<Prepared> PrepareWhatIf(const std::string& spec_path, const std::string& cluster,
                                       const TellSearch& tell = {});

}  // namespace terrace
