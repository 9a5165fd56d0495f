// Programs of which every step buffer lies in pages at second addresses, for tests of whoever
// executes them.
//
// Each buffer keeps its memory: the pages that it touches get addresses of its own, those at its
// ends in their place and those between, if they are shuffled, in the opposite order. So buffers
// share bytes exactly where they did, and what was proved about them stays true.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "proto/program/arena_pages.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// Returns how many buffers moved. REQUIRES: the planned allocator, an arena without such pages.
inline int MoveToSecondAddresses(int64_t page_bytes, v1::Program* program, bool shuffled = true) {
  v1::Arena* arena = program->mutable_arenas(0);
  arena->set_bytes((arena->bytes() + page_bytes - 1) / page_bytes * page_bytes);
  arena->set_page_bytes(page_bytes);
  const auto add = [&](int64_t page, int64_t pages) {
    v1::PageRun* run = arena->add_aliases();
    run->set_page(page);
    run->set_pages(pages);
  };
  int moved = 0;
  for (v1::Buffer& buffer : *program->mutable_buffers()) {
    if (buffer.arena() != 0 || buffer.lifetime() != v1::STEP) continue;
    const int64_t first = buffer.offset() / page_bytes;
    const int64_t last = (buffer.offset() + buffer.bytes() - 1) / page_bytes;
    buffer.set_offset(AddressBytes(*arena) + buffer.offset() % page_bytes);
    ++moved;
    if (!shuffled) {
      add(first, last - first + 1);
      continue;
    }
    add(first, 1);
    for (int64_t page = last - 1; page > first; --page) add(page, 1);
    if (last > first) add(last, 1);
  }
  return moved;
}

}  // namespace terrace
