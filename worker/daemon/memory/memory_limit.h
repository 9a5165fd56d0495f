// Memory that runs out: whether a live rank is over a limit because of bytes outside its arenas, so
// that it is better ended at a step's boundary than killed within, and whether a dead one died of
// it.
//
// Pure and thread-safe, but for ReadHardLimits, which asks the system.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "proto/v1/worker.pb.h"
#include "worker/daemon/memory/memory_verdict.h"

namespace terrace {

// What kills a rank that reaches it.
struct HardLimits {
  std::string cgroup;                          // its name
  std::optional<int64_t> cgroup_bytes;         // of all its processes
  std::optional<int64_t> address_space_bytes;  // ulimit -v
  int64_t address_space_used_bytes = 0;
};
HardLimits ReadHardLimits(int64_t pid);

// A rank is ended when this share of a hard limit is left, so that its last step and its checkpoint
// still fit below.
inline constexpr double kHardLimitReserve = 1.0 / 32;

// Whether the rank holds more outside its arenas than its plan allows.
bool HoldsMoreThanPlanned(const v1::RankMemory& memory);

// A sentence when the rank holds more than planned and is therefore over a limit: its share of the
// device's memory, or nearly a hard one. Empty otherwise.
std::string ExceededLimit(const v1::RankMemory& memory, const v1::RankConfig& config,
                          const HardLimits& hard);

// `last_line` of its log: an allocation that fails ends a rank by abort().
bool DiedOfMemory(const MemoryFacts& facts, const std::string& last_line);

}  // namespace terrace
