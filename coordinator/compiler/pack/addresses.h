// The addresses of an arena whose pages may lie at second addresses: first its memory in its own
// order, then groups of pages of it, each group made for a buffer that fits nowhere in one piece.
//
// In: holes, the bytes of memory that are free during a life. Out: addresses at which a buffer
// finds its bytes in holes, and the runs of pages that make them (v1::Arena.aliases). A page may
// lie in several groups, in one group only once. Only whole pages can be put anywhere, so inside a
// buffer a piece ends where a page does; at its ends it may share pages with others. Deterministic.
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"

namespace terrace {

struct ByteRange {
  int64_t begin = 0;
  int64_t end = 0;
};

struct PackPageRun {
  int64_t page = 0;
  int64_t pages = 0;
};

class PackAddresses {
 public:
  // REQUIRES: `memory_bytes` are whole pages.
  PackAddresses(int64_t page_bytes, int64_t memory_bytes);

  // The lowest address in the tightest place for `bytes`. Holes, here and below: sorted, apart,
  // inside the memory.
  std::optional<int64_t> Find(absl::Span<const ByteRange> holes, int64_t bytes) const;
  // The address of a new group of pages for `bytes`. None where too few pages are free, or more
  // than `runs_max` runs or `pages_max` pages would be.
  std::optional<int64_t> Add(absl::Span<const ByteRange> holes, int64_t bytes, int64_t runs_max,
                             int64_t pages_max);
  // The memory behind [address, address + bytes).
  void AppendMemory(int64_t address, int64_t bytes, std::vector<ByteRange>* ranges) const;

  int64_t memory_bytes() const { return pieces_.front().bytes; }
  int64_t page_bytes() const { return page_bytes_; }
  int64_t alias_pages() const { return (end_ - memory_bytes()) / page_bytes_; }
  // Of all groups, in the order of addresses.
  std::vector<PackPageRun> Runs() const;

 private:
  struct Piece {
    int64_t address = 0;
    int64_t memory = 0;
    int64_t bytes = 0;
    bool begins_group = false;
  };

  int64_t page_bytes_;
  int64_t end_;                // of the addresses
  std::vector<Piece> pieces_;  // by address, without gaps; the first is the memory itself
};

}  // namespace terrace
