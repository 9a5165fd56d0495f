// SPDX-License-Identifier: Apache-2.0
#include "worker/device/device_use.h"

#include <unistd.h>

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/memory.h"
#include "worker/device/cuda_queue.h"

namespace terrace {
namespace {

// By all processes together.
absl::StatusOr<int64_t> UsedByAll() {
  int64_t free_bytes = 0, total_bytes = 0;
  RETURN_IF_ERROR(OfCuda(kernels::cuda::FreeBytes(&free_bytes, &total_bytes)));
  return total_bytes - free_bytes;
}

}  // namespace

kernels::Status DeviceUse::Ask(int64_t* bytes) const {
  if (nvml_ == nullptr) return {no_nvml_};
  if (const kernels::Status entered = device_.Use(); !entered.ok()) return entered;
  return nvml_->UsedBy(
      {.pid = ::getpid(),
       .shares_numbers = kernels::cuda::SharesProcessNumbers(),
       .at_least = reserved_bytes_,
       .all_hold = [] { return UsedByAll().value_or(std::numeric_limits<int64_t>::max()); }},
      bytes);
}

void DeviceUse::OpenNvml() {
  if (nvml_ == nullptr && no_nvml_.empty())
    no_nvml_ = kernels::cuda::NvmlDevice::Open(device_.uuid(), &nvml_).message;
}

int64_t DeviceUse::Held() {
  OpenNvml();
  int64_t bytes = 0;
  if (Ask(&bytes).ok()) return bytes;
  return UsedByAll().value_or(0);
}

// Contexts of ranks of one job are alike. All ranks on the device take the largest reading of any,
// as others may come and go between two of them: where they decide by it they decide alike.
absl::StatusOr<int64_t> DeviceUse::Measure(int64_t reserved_bytes, RendezvousStore* store) {
  OpenNvml();
  reserved_bytes_ = reserved_bytes;
  ASSIGN_OR_RETURN(const CudaGroups::Sharers reserved, groups_.MeetSharers(reserved_bytes, store));
  ASSIGN_OR_RETURN(all_bytes_, UsedByAll());
  int64_t own_bytes = 0;
  const bool told = Ask(&own_bytes).ok();
  // Nobody changes what it holds before all have read it.
  ASSIGN_OR_RETURN(const CudaGroups::Sharers used, groups_.MeetSharers(all_bytes_, store));
  const int64_t share = std::max<int64_t>(0, used.most_bytes - reserved.bytes) / reserved.ranks;
  own_bytes_ = told ? own_bytes : reserved_bytes + share;
  return own_bytes_ - reserved_bytes;
}

DriverUse DeviceUse::Now() const {
  int64_t bytes = 0;
  const kernels::Status asked = Ask(&bytes);
  const double joules = nvml_ == nullptr ? 0 : nvml_->EnergyJoules();
  if (asked.ok()) return {bytes, "NVML", joules};
  const std::string source = absl::StrCat(
      "cudaMemGetInfo, by what all processes on the device hold since the rank was "
      "prepared; ",
      asked.message);
  if (!device_.Use().ok()) return {own_bytes_, source, joules};
  const auto all_bytes = UsedByAll();
  const int64_t since = all_bytes.ok() ? *all_bytes - all_bytes_ : 0;
  return {std::max<int64_t>(reserved_bytes_, own_bytes_ + since), source, joules};
}

absl::StatusOr<std::vector<DeviceLoad>> LoadsOf(const std::vector<DeviceSummary>& devices) {
  std::vector<DeviceLoad> loads;
  for (const DeviceSummary& device : devices) {
    std::unique_ptr<kernels::cuda::NvmlDevice> nvml;
    kernels::Status status = kernels::cuda::NvmlDevice::Open(device.uuid, &nvml);
    DeviceLoad load;
    if (status.ok()) status = nvml->CountProcesses(&load.processes);
    if (!status.ok()) return absl::UnavailableError(status.message);
    if (int percent = 0; nvml->BusyPercent(&percent).ok()) load.busy_percent = percent;
    loads.push_back(load);
  }
  return loads;
}

}  // namespace terrace
