// SPDX-License-Identifier: Apache-2.0
#include "worker/probe/device.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "worker/probe/device_runner.h"
#include "worker/probe/rates.h"

namespace terrace {
namespace {

constexpr double kTurnSeconds = 4e-3;  // of one turn of one case, if calls are that short
constexpr int kCallsMax = 64;
constexpr int kBriefTurns = 3, kThoroughTurns = 8, kStreamTurns = 10;
constexpr double kKernelShare = 0.8;  // of the time
constexpr int kRanksMax = 8;          // that are linked

// The first call tells how many make a turn. 0: the device cannot compute the case.
absl::StatusOr<int> CallsOf(const ProbeCase& one, DeviceRunner* runner) {
  const auto seconds = runner->Seconds(one, 1);
  if (absl::IsUnimplemented(seconds.status())) return 0;
  RETURN_IF_ERROR(seconds.status());
  if (*seconds <= 0) return kCallsMax;
  return static_cast<int>(std::clamp(kTurnSeconds / *seconds, 1.0, double{kCallsMax}));
}

std::string NamesOf(const std::vector<DeviceSummary>& devices) {
  std::string names;
  for (const DeviceSummary& device : devices) absl::StrAppend(&names, device.name, "\n");
  return names;
}

}  // namespace

DeviceProbe DeviceProbeOf(ProbeDepth depth, const std::vector<DeviceSummary>& devices) {
  const bool brief = depth == ProbeDepth::kBrief;
  int64_t smallest = devices.empty() ? 0 : devices.front().memory_bytes;
  for (const DeviceSummary& device : devices) smallest = std::min(smallest, device.memory_bytes);
  return {.cases = ProbeCases(depth, ProbeTarget::kGpu),
          .turns = brief ? kBriefTurns : kThoroughTurns,
          // Others may use the device too; operands of every case fit into the second figure.
          .arena_bytes = std::min<int64_t>(smallest / 4, int64_t{8} << 30),
          .stream_elements = 64 << 20,
          .copy_bytes = 128 << 20,
          .link_elements = 16 << 20,
          .link_calls = brief ? 15 : 51,
          .ranks = std::min(kRanksMax, static_cast<int>(devices.size()))};
}

std::string DeviceHash(const std::vector<DeviceSummary>& devices, std::string_view version) {
  const DeviceSummary first = devices.empty() ? DeviceSummary() : devices.front();
  return MachineHash({.processor = NamesOf(devices),
                      .flags = first.driver,
                      .cores = static_cast<uint32_t>(devices.size()),
                      .memory_bytes = first.memory_bytes},
                     version);
}

std::string DeviceKind(const std::vector<DeviceSummary>& devices) {
  constexpr size_t kDigits = 8;
  const std::string hash = MachineHash(
      {.processor = NamesOf(devices), .cores = static_cast<uint32_t>(devices.size())}, "");
  return absl::StrCat("cuda-", hash.substr(0, kDigits));
}

absl::Status MeasureDeviceKernels(Backend* backend, const DeviceProbe& probe,
                                  const ProbeWatcher& watcher, v1::HardwareProfile* profile) {
  ASSIGN_OR_RETURN(const std::unique_ptr<DeviceRunner> runner,
                   DeviceRunner::Create(backend, probe.arena_bytes));
  const std::vector<ProbeCase>& cases = probe.cases;
  std::vector<int> calls(cases.size());
  std::vector<std::vector<double>> turns(cases.size());
  for (int turn = 0; turn < probe.turns; ++turn) {
    for (size_t i = 0; i < cases.size(); ++i) {
      const double part = static_cast<double>(i) / static_cast<double>(cases.size());
      watcher("kernels", kKernelShare * (turn + part) / probe.turns);
      if (!runner->Fits(cases[i])) continue;
      if (turn == 0) {
        ASSIGN_OR_RETURN(calls[i], CallsOf(cases[i], runner.get()));
      }
      if (calls[i] == 0) continue;
      ASSIGN_OR_RETURN(const double seconds, runner->Seconds(cases[i], calls[i]));
      turns[i].push_back(seconds);
    }
  }
  for (size_t i = 0; i < cases.size(); ++i)
    AddRate(cases[i], MeanWithoutExtremes(turns[i]), profile);
  const ProbeCase stream = StreamCase(probe.stream_elements);
  if (runner->Fits(stream)) {
    ASSIGN_OR_RETURN(const double seconds, runner->Seconds(stream, kStreamTurns));
    SetMemoryRate(stream, seconds, profile);
  }
  return backend->CheckRun();  // what kernels could not say when they were launched
}

absl::StatusOr<v1::HardwareProfile> MeasureDevice(const DeviceProbe& probe,
                                                  std::string_view version,
                                                  const ProbeWatcher& watcher) {
  ASSIGN_OR_RETURN(const std::vector<DeviceSummary> devices, ListCudaDevices());
  v1::HardwareProfile profile;
  profile.set_name(devices.front().name);
  profile.set_hardware(DeviceHash(devices, version));
  profile.set_device("cuda");
  profile.set_driver(devices.front().driver);
  profile.set_device_memory_bytes(devices.front().memory_bytes);
  profile.set_ranks_per_node(static_cast<uint32_t>(devices.size()));
  {
    ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, OpenBackend("cuda", 0));
    RETURN_IF_ERROR(MeasureDeviceKernels(backend.get(), probe, watcher, &profile));
    watcher("copies", kKernelShare);
    RETURN_IF_ERROR(MeasureDeviceCopies(backend.get(), probe.copy_bytes, &profile));
    watcher("instructions", kKernelShare + 0.05);
    RETURN_IF_ERROR(MeasureDeviceInstructions(backend.get(), &profile));
  }
  if (probe.ranks > 1) {
    watcher("links", kKernelShare + 0.1);
    if (const absl::Status status = MeasureDeviceLinks(probe, &profile); !status.ok())
      log::Warn("the links between GPUs are not measured: ", status.message());
  }
  profile.set_measured(true);
  return profile;
}

}  // namespace terrace
