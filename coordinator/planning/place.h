// Where a path leads, so that two paths to one folder can be told, through a link or a mount.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace terrace {

// Equal for paths that lead to one place on this machine, whatever links and mounts lie on the way.
// A folder that is not there yet is where its nearest parent that is there says. Empty for a path
// that is relative or cannot be followed.
std::string PlaceOf(const std::string& path);

}  // namespace terrace
