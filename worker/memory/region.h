// The memory of one arena of a rank, on whatever tier: what checkpoints and initialisation read and
// write by range, addressable or not.
//
// Thread rule: Read and Write may be called from any thread; no Write at once with anything else
// for the same bytes.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"

namespace terrace {

class Region {
 public:
  virtual ~Region() = default;

  // The first byte; null when the host cannot address the memory (a file on NVMe, a GPU's memory).
  virtual std::byte* data() const = 0;
  // The first byte as instructions name it; null when they cannot (a file).
  virtual std::byte* device_data() const { return data(); }
  virtual int64_t bytes() const = 0;

  // `offset` in bytes from the start; no alignment is asked for. OUT_OF_RANGE beyond bytes() and
  // second addresses (second_addresses.h);
  // DATA_LOSS when what is read is not what was written; otherwise what the system says.
  virtual absl::Status Read(int64_t offset, std::span<std::byte> to) = 0;
  virtual absl::Status Write(int64_t offset, std::span<const std::byte> from) = 0;
  // As Write of so many zeros.
  virtual absl::Status Zero(int64_t offset, int64_t bytes);
};

}  // namespace terrace
