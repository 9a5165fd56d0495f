// The checker's first part: everything but instructions. Ids equal positions, references exist,
// sizes are sane, there is one arena a tier, buffers lie aligned inside their arenas, arenas inside
// the budgets; the grid makes the job's ranks and stages, groups are made of its axes.
//
// What passes may be indexed without further tests by the other parts. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "proto/v1/program.pb.h"

namespace terrace::check {

// Limits that bound the time and memory of the checker itself on bytes from anywhere.
inline constexpr int kArenasMax = 16;
inline constexpr int kStreamsMax = 32;
inline constexpr int kGroupsMax = 64;
inline constexpr int kSequencesMax = 64;
inline constexpr int kBuffersMax = 1'000'000;
inline constexpr int kInstructionsMax = 2'000'000;
inline constexpr uint32_t kRanksMax = 1 << 20;
inline constexpr uint32_t kThreadsMax = 4096;
inline constexpr int64_t kBytesMax = int64_t{1} << 50;
// Each run is a mapping of its own, of which a process may have 65,530 (vm.max_map_count).
inline constexpr int kPageRunsMax = 1 << 15;
inline constexpr int64_t kPageBytesMin = 4096;
inline constexpr int64_t kPageBytesMax = int64_t{1} << 30;

absl::Status CheckStructure(const v1::Program& program);

}  // namespace terrace::check
