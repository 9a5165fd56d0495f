// Files in folders that others may write into, too: what lies under the name is replaced, never
// written through. A link that somebody put there leads nowhere.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace terrace {

// A new file, open for writing, with just this mode whatever the umask is; one of that name is
// removed first.
absl::StatusOr<UniqueFd> CreateNewFile(const std::string& path, mode_t mode);

// Writes path.new, synced, and renames it to `path`.
absl::Status ReplaceFile(const std::string& path, std::string_view text, mode_t mode);

}  // namespace terrace
