// What a rank holds of its GPU as the driver counts it: asked of NVML by process where it tells,
// worked out of what all processes together hold where it does not (in a container, as a rule).
//
// Borrows all. Thread-compatible; Now on any thread once Measure has returned.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/nvml.h"
#include "worker/device/backend.h"
#include "worker/device/cuda_groups.h"

namespace terrace {

class DeviceUse {
 public:
  DeviceUse(const kernels::cuda::Device& device, CudaGroups* groups)
      : device_(device), groups_(*groups) {}

  // Backend::ExternalBytes.
  absl::StatusOr<int64_t> Measure(int64_t reserved_bytes, RendezvousStore* store);
  // Backend::HeldBytes.
  int64_t Held();
  // Backend::AskDriver.
  DriverUse Now() const;

 private:
  void OpenNvml();
  kernels::Status Ask(int64_t* bytes) const;

  const kernels::cuda::Device& device_;
  CudaGroups& groups_;
  std::unique_ptr<kernels::cuda::NvmlDevice> nvml_;
  std::string no_nvml_;  // why it is null
  // As last measured.
  int64_t reserved_bytes_ = 0, own_bytes_ = 0, all_bytes_ = 0;
};

}  // namespace terrace
