// What a rank is started with: its configuration and its program, read from files and not trusted.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/v1/program.pb.h"
#include "proto/v1/worker.pb.h"
#include "worker/memory/arena.h"
#include "worker/memory/region.h"

namespace terrace {

// Protobuf's JSON when the name ends in ".json", its binary form otherwise. NOT_FOUND,
// INVALID_ARGUMENT with the path.
absl::StatusOr<v1::RankConfig> ReadRankConfig(std::string_view path);

// Verifies the hash unless `sha256` is empty, then runs the checker. INVALID_ARGUMENT with the
// path.
absl::StatusOr<std::unique_ptr<v1::Program>> ReadProgram(std::string_view path,
                                                         std::string_view sha256);

// The arenas of a program, reserved and touched. RESOURCE_EXHAUSTED when the system has too little
// memory.
class ProgramMemory {
 public:
  static absl::StatusOr<ProgramMemory> Reserve(const v1::Program& program, int threads);
  // By Arena.id. Of one that cannot be addressed the first is null.
  std::span<std::byte* const> arenas() const { return data_; }
  std::span<Region* const> regions() const { return regions_; }
  int64_t reserved_bytes() const;

 private:
  std::vector<std::unique_ptr<Arena>> arenas_;
  std::vector<Region*> regions_;
  std::vector<std::byte*> data_;
};

}  // namespace terrace
