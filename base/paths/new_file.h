// Files in folders that others may write into, too: what lies under the name is replaced, never
// written through. A link that somebody put there leads nowhere. And files that a user asks for,
// who may well mean a device or what a link leads to.
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

// OK where a file may take the name `path`: where there is nothing, or a file. INVALID_ARGUMENT
// names a device, a FIFO, a socket or a folder there: to replace /dev/null would break the machine.
absl::Status CheckCanBeReplaced(const std::string& path);

// Writes what a user asked for. A file at `path` stays as it was until all of the new one is
// written, and a link leads to the file that is replaced; a device or a FIFO is written into.
absl::Status WriteOutput(const std::string& path, std::string_view text);

}  // namespace terrace
