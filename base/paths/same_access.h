// Files that hold what another file held (caches, copies) are open to whom that one is, not to
// more: they have its mode, and its owner and group as far as this process may give them away.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace terrace {

// A new file, open for writing, in place of one of that name. This user may always read and write
// it; where it cannot have the group of `source`, its group may what all others may.
absl::StatusOr<UniqueFd> CreateWithAccessOf(const std::string& source, const std::string& path);

// Takes from `path` what `source` has no longer, where this user may. A file that is not there is
// left to whoever opens it.
void LimitAccessTo(const std::string& source, const std::string& path);

}  // namespace terrace
