// Programs by hash in <state>/programs/: filled from the coordinator's chunks, verified before use.
//
// Used only on the daemon's loop.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/v1/worker.pb.h"

namespace terrace {

inline constexpr int64_t kProgramBytesMax = int64_t{512} << 20;
inline constexpr size_t kProgramsReceivedMax = 16;  // at a time
inline constexpr size_t kProgramsKept = 64;

class ProgramCache {
 public:
  explicit ProgramCache(std::string_view state);

  // The file, if it is there.
  absl::StatusOr<std::string> Find(std::string_view sha256) const;
  // True when this chunk completed its program. INVALID_ARGUMENT: chunks do not follow each other,
  // or the whole does not have the hash; what was received of it is dropped.
  absl::StatusOr<bool> Add(const v1::ProgramChunk& chunk);

 private:
  std::string PathOf(std::string_view sha256) const;
  absl::Status Store(std::string_view sha256, const std::string& bytes);
  void RemoveOldest();

  const std::string folder_;
  std::map<std::string, std::string, std::less<>> incoming_;
};

}  // namespace terrace
