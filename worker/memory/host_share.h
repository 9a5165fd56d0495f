// Ranks of one node take from the same free memory, and all look at it before any of them has taken
// what it needs. In a file that they share the first to come writes what was free then, and each
// adds what it is about to take: so every rank is held to what the earlier ones leave.
//
// Thread-safe, among processes too: the file is locked.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/memory/host_limits.h"

namespace terrace {

// `limits` as read by this rank just now; the result is what is left for it, with `taken_bytes` by
// the others. It has taken its `bytes` from then on, whether they fit or not. An error of the file:
// FAILED_PRECONDITION when it is none of ours, otherwise the system's.
absl::StatusOr<HostLimits> TakeHostShare(std::string_view path, int64_t bytes,
                                         const HostLimits& limits);

}  // namespace terrace
