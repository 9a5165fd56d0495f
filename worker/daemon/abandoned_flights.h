// Flight recorders in shared memory that nobody will settle any more: their rank is dead, and so
// was its daemon, and the run directory that named them is gone or another daemon's.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace terrace {

// So long after its creation a recorder whose process is dead counts as abandoned: daemons that
// start at the same time have settled theirs by then.
inline constexpr int64_t kAbandonedFlightSeconds = 3600;

// The files removed. Those that belong to others than `owner` are left alone.
int RemoveAbandonedFlights(const std::string& folder, uid_t owner, int64_t older_than_seconds);

}  // namespace terrace
