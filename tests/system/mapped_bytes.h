// What the system says of this process's memory, for tests that hold a program's figures against
// it.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>

namespace terrace {

// By first address, from /proc/self/maps: bytes of each mapping that can be written.
std::map<uintptr_t, int64_t> WritableMappings();

}  // namespace terrace
