// What was written to the file on NVMe, remembered as one 64-bit hash for each page of 4096 bytes:
// the unit of every request, so that writes of any extent need no neighbour and no read.
//
// The table takes 1/512 of the file in RAM, and only for pages that were written.
// Thread rule: calls for different pages may run at once.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/statusor.h"

namespace terrace {

// Thread-compatible; thread-safe for different pages.
class NvmeChecksums {
 public:
  static constexpr int64_t kPageBytes = 4096;

  // RESOURCE_EXHAUSTED when the system refuses the table.
  static absl::StatusOr<NvmeChecksums> Create(int64_t file_bytes);

  // `offset` and the size of `data` are multiples of kPageBytes.
  void Note(int64_t offset, std::span<const std::byte> data);
  // Offset of the first page that is not what was noted; -1 when all are, or never were noted.
  int64_t FirstWrong(int64_t offset, std::span<const std::byte> data) const;

 private:
  struct Free {
    void operator()(uint64_t* table) const { std::free(table); }
  };
  using Table = std::unique_ptr<uint64_t[], Free>;

  explicit NvmeChecksums(Table hashes) : hashes_(std::move(hashes)) {}

  Table hashes_;  // 0: never written
};

}  // namespace terrace
