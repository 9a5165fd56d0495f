// The values of the options of `serve` about the queue.
//
// Pure. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "coordinator/queue/options.h"

namespace terrace {

// A time as of time_limit in a spec, of at least so many seconds. Returns what is wrong with it;
// empty: nothing is.
std::string ReadSpan(const std::string& text, int64_t least, int64_t* seconds);

// "alice=16": the quota of one user. Returns as above.
std::string ReadQuota(const std::string& text, QueueOptions* queue);

// "host=1TiB", or with a user "alice:host=1TiB": the quota of memory of a tier. Returns as above.
std::string ReadBytesQuota(const std::string& text, bool of_user, QueueOptions* queue);

}  // namespace terrace
