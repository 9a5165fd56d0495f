// Checks that a path which somebody names stays below a folder that an operator allows. The kernel
// resolves it (openat2 with RESOLVE_BENEATH and RESOLVE_NO_MAGICLINKS): neither a symbolic link nor
// ".." may lead out of the folder, and the path must end at a file or a folder, not at a FIFO, a
// socket or a device.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace terrace {

// OK also for what is not there yet, as long as the part that is stays below. PERMISSION_DENIED:
// it lies below none of `roots`, or leads out; INVALID_ARGUMENT: something else than a file or a
// folder. The message is the end of a sentence that begins with the path: "lies below none of
// /data, /more", "leads out of /data by a symbolic link". `path` and `roots` are absolute.
absl::Status CheckBeneath(std::string_view path, std::span<const std::string> roots);

// The same without openat2, for kernels before 5.6 and containers that refuse it.
absl::Status CheckBeneathByName(std::string_view path, std::span<const std::string> roots);

}  // namespace terrace
