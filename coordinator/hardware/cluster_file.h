// A cluster in a file, for hardware that the catalogue does not have: cluster.yaml in, Cluster out.
// docs/cluster.md describes the keys. A device is like one of the catalogue but for what is
// written; so are its links, memory and node.
//
// All problems are reported at once, as the job spec's: "line L, column C: path: got X, must be Y;
// try Z". Limits: 64 KiB of text. Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "coordinator/hardware/cluster.h"

namespace terrace {

inline constexpr int64_t kClusterBytesMax = 64 << 10;

absl::StatusOr<Cluster> ParseClusterFile(std::string_view yaml);

// Of the text of a job spec that was read before; nothing of one that is no YAML.
WrittenCounts WrittenIn(std::string_view spec_yaml);

}  // namespace terrace
