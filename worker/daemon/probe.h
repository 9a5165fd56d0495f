// What this node offers: cores, memory, instruction set, and the rates that `terrace-rank probe`
// measures once and keeps in the user's cache folder.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "proto/v1/job.pb.h"

namespace terrace {

struct ProbeOptions {
  std::string name;
  uint32_t devices = 1;
  int64_t device_memory_bytes = 0;  // 0: a fair share of 90 % of the machine's memory
  uint32_t threads_per_device = 0;  // 0: cores / devices
  std::string state_directory;
  std::string rank_binary;
};

// Takes some seconds when nothing is kept yet. Without a profile the planner falls back to its
// default rates.
v1::Node ProbeNode(const ProbeOptions& options);

}  // namespace terrace
