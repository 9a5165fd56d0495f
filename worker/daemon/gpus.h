// The GPUs of this node, as `terrace-rank devices` lists them, and which kind of device a worker
// offers.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace terrace {

struct Gpus {
  uint32_t devices = 0;      // 0: none can be used
  std::string name;          // the driver's, of the first
  int64_t memory_bytes = 0;  // of the smallest
  std::string problem;       // why there are none
};

// None with a problem when it is not what `terrace-rank devices -o json` prints.
Gpus ParseGpus(std::string_view json);

// Whether the worker offers GPUs. `wanted` is "auto", "cpu" or "cuda". FAILED_PRECONDITION where
// GPUs are wanted and there are none.
absl::StatusOr<bool> OffersGpus(std::string_view wanted, const Gpus& gpus);

// Of one device, where `devices` ranks share the GPUs; 16 for 2 ranks on one GPU of 32.
int64_t MemoryOfEach(const Gpus& gpus, uint32_t devices);

}  // namespace terrace
