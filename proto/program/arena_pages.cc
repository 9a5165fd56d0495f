// SPDX-License-Identifier: Apache-2.0
#include "proto/program/arena_pages.h"

#include <algorithm>

namespace terrace {

int64_t AliasBytes(const v1::Arena& arena) {
  int64_t pages = 0;
  for (const v1::PageRun& run : arena.aliases()) pages += run.pages();
  return pages * arena.page_bytes();
}

int64_t AddressBytes(const v1::Arena& arena) { return arena.bytes() + AliasBytes(arena); }

ArenaPages::ArenaPages(const v1::Arena& arena) {
  pieces_.push_back({.bytes = arena.bytes()});
  int64_t address = arena.bytes();
  for (const v1::PageRun& run : arena.aliases()) {
    const Piece piece = {.address = address,
                         .memory = run.page() * arena.page_bytes(),
                         .bytes = run.pages() * arena.page_bytes()};
    address += piece.bytes;
    Piece& last = pieces_.back();
    if (last.memory + last.bytes == piece.memory) {
      last.bytes += piece.bytes;
    } else {
      pieces_.push_back(piece);
    }
  }
}

void ArenaPages::ForEachRange(int64_t begin, int64_t end,
                              absl::FunctionRef<void(int64_t, int64_t)> visit) const {
  auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), begin,
                                [](int64_t at, const Piece& p) { return at < p.address; });
  for (--piece; begin < end; ++piece) {
    const int64_t stop = std::min(end, piece->address + piece->bytes);
    visit(begin - piece->address + piece->memory, stop - piece->address + piece->memory);
    begin = stop;
  }
}

}  // namespace terrace
