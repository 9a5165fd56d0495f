// Stands for the CUDA backend in builds without it.
//
// SPDX-License-Identifier: Apache-2.0
#include "worker/device/backend.h"

namespace terrace {

absl::StatusOr<std::unique_ptr<Backend>> OpenCudaBackend(int) {
  return absl::FailedPreconditionError(
      "resources.device: got cuda, but this terrace-rank was built without the CUDA backend; "
      "install "
      "the bundle, build where nvcc is found (-DTERRACE_CUDA=ON), or set resources.device: cpu");
}

absl::StatusOr<std::vector<DeviceSummary>> ListCudaDevices() {
  return absl::FailedPreconditionError(
      "this terrace-rank was built without the CUDA backend; install the bundle, or build where "
      "nvcc "
      "is found (-DTERRACE_CUDA=ON)");
}

absl::StatusOr<std::vector<DeviceLoad>> LoadsOf(const std::vector<DeviceSummary>&) {
  return std::vector<DeviceLoad>();
}

}  // namespace terrace
