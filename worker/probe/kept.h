// The profile that a command asks for: the one that is kept where it will do, else one that is
// measured now. Where something else ran beside the measurement it is not kept, or kept with that
// doubt. One in doubt, for that or because a job went another way than its plan, is used until the
// machine is quiet, and then measured again.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/v1/hardware.pb.h"
#include "worker/device/backend.h"
#include "worker/probe/cache.h"

namespace terrace {

// Looks for what disturbs a measurement. Thread-compatible.
class ProbeWatch {
 public:
  virtual ~ProbeWatch() = default;
  virtual void Begin() = 0;
  // After the measurement: a sentence; empty where nothing did, or nobody knows.
  virtual std::string End() = 0;
};

// Whatever else runs on the GPUs right before or after. Processes that only hold memory there, as
// ranks that wait and servers without work do, take nothing away. Where the driver does not say how
// busy a device is (a part of one), other processes count as busy.
class GpuWatch final : public ProbeWatch {
 public:
  using Look = std::function<absl::StatusOr<std::vector<DeviceLoad>>()>;
  // `settle`: after it this process's own work is no part of what the driver tells any more.
  GpuWatch(Look look, absl::Duration settle) : look_(std::move(look)), settle_(settle) {}
  void Begin() override;
  std::string End() override;
  // Whether nothing disturbs a measurement now; also where the driver does not tell.
  bool IsQuiet() const;

 private:
  const Look look_;
  const absl::Duration settle_;
  absl::StatusOr<std::vector<DeviceLoad>> before_;
};

struct WantedProfile {
  std::function<bool(const v1::HardwareProfile& kept)> is_enough;
  std::function<absl::StatusOr<v1::HardwareProfile>(const v1::HardwareProfile* kept)> measure;
  ProbeWatch* watch = nullptr;  // asked only where something is measured; null: nothing to see
  // Whether a profile that is in doubt can be measured again now. Null: never before it is asked
  // for.
  std::function<bool()> is_quiet;
  // A profile whose measurement was disturbed is kept with that doubt: others may use the device
  // for hours. Otherwise it is not kept.
  bool keeps_doubtful = false;
};
// `say`: gets whole sentences about what is kept and what is not.
absl::StatusOr<v1::HardwareProfile> KeptOrMeasured(
    const ProbeCache& cache, const WantedProfile& wanted,
    const std::function<void(std::string_view)>& say);

}  // namespace terrace
