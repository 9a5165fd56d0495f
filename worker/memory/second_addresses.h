// Pages of an arena at second addresses behind it, so that a buffer there lies in one piece of
// addresses although it lies in several of memory (Arena.aliases in proto/v1/program.proto).
//
// Memory that has two addresses must be that of a file, without a name but in /proc/<pid>/maps. Of
// the arena only the blocks of 2 MiB in which something is named lie in it. At its first addresses
// such a block is one huge page where the system can make it one (MADV_COLLAPSE, Linux 6.1), as the
// rest of the arena is; what is read and written at second addresses has small pages.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace terrace {

struct PageRun {
  int64_t page = 0;   // of the arena
  int64_t pages = 0;  // > 0
};

// How large an arena is.
struct ArenaExtent {
  int64_t bytes = 0;            // of memory
  int64_t page_bytes = 0;       // whole pages of the system; bytes are whole pages of it
  std::vector<PageRun> runs{};  // inside the memory; what lies behind it, one after the other
  bool shareable = false;       // peers of other devices may want to map it
  int64_t second_bytes() const;
};

// Maps the pages that the runs name from `file`, with the blocks of 2 MiB that they lie in, at
// their place in the arena that begins at `data`, and the pages a second time behind it. `file`
// becomes as long as the arena. What the arena held in those blocks is lost. RESOURCE_EXHAUSTED
// with the bytes and what the system says. REQUIRES: the addresses are reserved, nobody uses them,
// and `data` is a multiple of 2 MiB, of which page_bytes is a part.
absl::Status MapSecondAddresses(int file, std::byte* data, const ArenaExtent& extent);

}  // namespace terrace
