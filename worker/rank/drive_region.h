// The NVMe tier as checkpoints and initialisation see it: what fails on the drive is a failure of
// the rank's machine there too (OfDrive in failure.h), not one of the checkpoint or the weights.
//
// Thread rule: thread-safe, as Region says.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "worker/memory/region.h"
#include "worker/reporting/failure.h"

namespace terrace {

// Thread-safe.
class DriveRegion final : public Region {
 public:
  // Borrows it.
  explicit DriveRegion(Region* region) : region_(region) {}

  std::byte* data() const override { return region_->data(); }
  int64_t bytes() const override { return region_->bytes(); }
  absl::Status Read(int64_t offset, std::span<std::byte> to) override {
    return OfDrive(region_->Read(offset, to));
  }
  absl::Status Write(int64_t offset, std::span<const std::byte> from) override {
    return OfDrive(region_->Write(offset, from));
  }

 private:
  Region* const region_;
};

}  // namespace terrace
