// Reads what a user hands over as a small text: a file, a pipe (`terrace plan <(make_spec)`) or
// standard input. Other inputs must be regular files (file.h): only here somebody waits.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace terrace {

inline constexpr char kStandardInput[] = "-";
inline constexpr absl::Duration kPipePatience = absl::Seconds(20);  // until its end

// True for standard input and pipes.
bool IsPipe(const std::string& path);
// The folder that relative paths in such a text start from: a file's own, else the present one.
std::string FolderOf(const std::string& path);

// INVALID_ARGUMENT: more than `limit_bytes`, a pipe into which nobody writes, or one that does not
// end in time. A path that is neither a pipe nor standard input is read by ReadTextFile().
absl::StatusOr<std::string> ReadTextOrPipe(const std::string& path, int64_t limit_bytes,
                                           absl::Duration patience = kPipePatience);

}  // namespace terrace
