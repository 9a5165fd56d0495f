// Measured profiles, kept in the user's cache folder: one file for each number of threads of a
// rank and one for GPUs, with the hash of the machine, or of the GPUs and their driver, that they
// are of; beside it a file that says why it is in doubt, where it is.
//
// A profile of other hardware is never used: it is measured again, and whoever waits for that is
// told why. Two processes that want one profile measure it once. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"
#include "proto/v1/hardware.pb.h"

namespace terrace {

// TERRACE_PROFILE_DIR, or `terrace` in the user's cache folder. Empty: there is no such folder, and
// nothing is kept.
std::string ProfileFolder();

// How long another process that measures the same is waited for, and who is told that this one
// waits. Afterwards it goes on beside the other.
struct ProbeCacheWait {
  absl::Duration limit = absl::Minutes(2);
  std::function<void(std::string_view)> say = [](std::string_view) {};
};

class ProbeCache {
 public:
  // `kind`: "2" for ranks of two threads, "cuda". `hardware`: hash of what is here.
  static ProbeCache Open(const std::string& folder, const std::string& kind, std::string hardware,
                         const ProbeCacheWait& wait = {});

  // What is kept of this machine. Otherwise nothing, and *why_not says why when something else is
  // there.
  std::optional<v1::HardwareProfile> Read(std::string* why_not) const;
  // Why what is kept should be measured again as soon as that can be done; empty: no reason.
  std::string Doubt() const;
  // NOT_FOUND: nothing is kept.
  absl::Status SetDoubt(const std::string& doubt) const;
  // A profile that cannot be kept is still a profile: the status is for a warning.
  absl::Status Write(const v1::HardwareProfile& profile, const std::string& doubt = "") const;

 private:
  ProbeCache(std::string path, std::string hardware, absl::StatusOr<UniqueFd> lock)
      : path_(std::move(path)), hardware_(std::move(hardware)), lock_(std::move(lock)) {}
  std::string path_;  // empty: nothing is kept
  std::string hardware_;
  absl::StatusOr<UniqueFd> lock_;
};

}  // namespace terrace
