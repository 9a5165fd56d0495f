// Tells whether two paths name one folder, through a link or a mount.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace terrace {

// The first of `others` that is the place of `directory` on this machine, "" where none is. A
// folder that is not there yet is where its nearest parent that is there says.
std::string SamePlace(const std::string& directory, const std::vector<std::string>& others);

}  // namespace terrace
