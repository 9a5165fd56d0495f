// Measures the GPUs of this machine for plans: kernels by shape and precision, memory, copies each
// way and both at once, instructions, and links between the GPUs. Times are those of the device's
// events.
//
// The first GPU stands for all, which are of one kind. It works through the rank's Backend, as
// training does, so it knows nothing of CUDA. Used on one thread; links start one a GPU.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/v1/hardware.pb.h"
#include "worker/device/backend.h"
#include "worker/probe/cases.h"
#include "worker/probe/probe.h"

namespace terrace {

// What is measured, and how large. A slow device wants less.
struct DeviceProbe {
  std::vector<ProbeCase> cases;
  int turns = 1;  // over all cases
  int64_t arena_bytes = 0;
  int64_t stream_elements = 0;  // f32 of a sum of two vectors
  int64_t copy_bytes = 0;       // of one copy
  int64_t link_elements = 0;    // f32 of a sum over ranks
  int link_calls = 0;
  int ranks = 1;  // that are linked: rank r has GPU r, round and round
};
// Some seconds, or, thorough, about a minute of a data-centre GPU.
DeviceProbe DeviceProbeOf(ProbeDepth depth, const std::vector<DeviceSummary>& devices);

// Hash of what rates depend on: the GPUs, their driver, the version of this program.
std::string DeviceHash(const std::vector<DeviceSummary>& devices, std::string_view version);
// What a profile of them is kept as: "cuda-1a2b3c4d", by their names and their number alone, so
// that processes that see other GPUs of the machine keep theirs beside it.
std::string DeviceKind(const std::vector<DeviceSummary>& devices);

// FAILED_PRECONDITION without a GPU; RESOURCE_EXHAUSTED where it has no room; what the device says.
// Links that cannot be measured are named in the log, and the profile has none.
absl::StatusOr<v1::HardwareProfile> MeasureDevice(const DeviceProbe& probe,
                                                  std::string_view version,
                                                  const ProbeWatcher& watcher);

// Its parts, each into fields of its own. Copies: of the size given, between device and pinned
// memory.
absl::Status MeasureDeviceKernels(Backend* backend, const DeviceProbe& probe,
                                  const ProbeWatcher& watcher, v1::HardwareProfile* profile);
absl::Status MeasureDeviceCopies(Backend* backend, int64_t copy_bytes,
                                 v1::HardwareProfile* profile);
// What an instruction takes beside its work, and until another queue goes on.
absl::Status MeasureDeviceInstructions(Backend* backend, v1::HardwareProfile* profile);
absl::Status MeasureDeviceLinks(const DeviceProbe& probe, v1::HardwareProfile* profile);

}  // namespace terrace
