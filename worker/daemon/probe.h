// What this node offers: cores, memory, instruction set, GPUs or shares of the CPU, and the rates
// that `terrace-rank probe` measures once and keeps in the user's cache folder.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/v1/job.pb.h"

namespace terrace {

struct ProbeOptions {
  std::string name;
  std::string device = "auto";  // "auto": GPUs where there are any; "cpu", "cuda"
  uint32_t devices = 0;         // 0: the GPUs; 1 on the CPU
  // 0: all of a GPU's, divided by the ranks that share it; on the CPU a fair share of 90 % of the
  // machine's.
  int64_t device_memory_bytes = 0;
  uint32_t threads_per_device = 0;  // 0: cores / devices
  std::string state_directory;
  std::string rank_binary;
};

// Takes some seconds when nothing is kept yet. Without a profile the planner falls back to its
// default rates, for GPUs to those of its catalogue. FAILED_PRECONDITION where GPUs are asked for
// and there are none.
absl::StatusOr<v1::Node> ProbeNode(const ProbeOptions& options);

// What of terrace-rank probe's arguments says which profile a worker has.
std::vector<std::string> ProbeArguments(const v1::Node& node);

}  // namespace terrace
