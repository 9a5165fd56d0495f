// What the operating system says about this process's memory: the bytes that are not arenas.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace terrace {

// Resident bytes outside the arenas: heap, stacks, code of the program and its libraries. Mapped
// data files (tokens, weights) do not count: the system takes their pages back when it needs them.
// Reads /proc/self/smaps; 0 where there is none.
int64_t ExternalBytes();

}  // namespace terrace
