// How the ranks that write or read one checkpoint keep step: each tells how it fared, and all learn
// the same.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace {

class CheckpointPeers {
 public:
  virtual ~CheckpointPeers() = default;
  virtual int rank() const = 0;  // of the job
  virtual int size() const = 0;
  // in: bytes, out: size() * bytes, by rank. Blocks until all ranks have come; UNAVAILABLE when one
  // is lost.
  virtual absl::Status AllGather(const void* in, void* out, int64_t bytes) = 0;
};

using AgreedValues = std::array<int64_t, 3>;

// Blocks until all ranks have come to this point. When all are well: everyone's values, by rank.
// Otherwise a failure on every rank: its own, or that of the first rank that failed, with its code,
// its words and one short payload. When a peer is lost, a rank that failed with NOT_FOUND says that
// instead: rank 0 may have removed what it looked for. Null `peers`: one rank.
absl::StatusOr<std::vector<AgreedValues>> Agree(CheckpointPeers* peers, const absl::Status& own,
                                                const AgreedValues& values);
// The same with one value.
absl::StatusOr<std::vector<int64_t>> Agree(CheckpointPeers* peers, const absl::Status& own,
                                           int64_t value);

}  // namespace terrace
