// Calls kernels on a device for a probe, in a row as in a training step, on memory that no cache
// holds any more.
//
// Operands are full of numbers of many patterns and about one: what a GPU draws, and so the clock
// at which it runs, depends on the bits that it moves, and zeros would be too fast.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "worker/device/backend.h"
#include "worker/device/device_queue.h"
#include "worker/memory/region.h"
#include "worker/probe/cases.h"

namespace terrace {

// Used on one thread. Borrows the backend, which must have queues.
class DeviceRunner {
 public:
  // RESOURCE_EXHAUSTED when the device has not that much memory.
  static absl::StatusOr<std::unique_ptr<DeviceRunner>> Create(Backend* backend,
                                                              int64_t arena_bytes);

  // Two sets of operands fit.
  bool Fits(const ProbeCase& one) const;
  // Of one call by the device's clock: the mean of `calls` in a row. One before them does not
  // count: it loads the kernel and lets the library choose. REQUIRES: Fits(one), calls > 0.
  absl::StatusOr<double> Seconds(const ProbeCase& one, int calls);

 private:
  DeviceRunner(std::unique_ptr<Region> arena, std::unique_ptr<DeviceQueue> queue)
      : arena_(std::move(arena)), queue_(std::move(queue)) {}
  absl::Status WritePattern();
  int64_t SetBytes(const ProbeCase& one) const;
  absl::StatusOr<std::vector<KernelCall>> Place(const ProbeCase& one);
  absl::Status Fill(const std::vector<KernelCall>& sets);
  std::byte* at(int64_t offset) const { return arena_->device_data() + offset; }
  int64_t first_set() const;

  const std::unique_ptr<Region> arena_;
  const std::unique_ptr<DeviceQueue> queue_;
  SystemClock clock_;
};

}  // namespace terrace
