// From the addresses of an arena to its memory: where an arena has pages at second addresses
// (Arena.aliases), a buffer lies in one piece of addresses and in several of memory.
//
// Whoever asks whether two buffers share bytes asks about memory; whoever computes on a buffer or
// says where it is uses addresses. Where an arena has no such pages both are the same.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// Of its memory and of the pages that follow at second addresses.
int64_t AddressBytes(const v1::Arena& arena);
// Of the second addresses alone.
int64_t AliasBytes(const v1::Arena& arena);

class ArenaPages {
 public:
  // REQUIRES: pages lie inside the memory and the sums of their bytes in int64 (checked by
  // proto/check/instruction/structure.cc).
  explicit ArenaPages(const v1::Arena& arena);

  // The bytes of memory behind the addresses [begin, end), as ranges [begin, end) in the order of
  // addresses; neighbours in both are one. REQUIRES: 0 <= begin <= end <= AddressBytes.
  void ForEachRange(int64_t begin, int64_t end,
                    absl::FunctionRef<void(int64_t begin, int64_t end)> visit) const;

 private:
  struct Piece {
    int64_t address = 0;
    int64_t memory = 0;
    int64_t bytes = 0;
  };
  std::vector<Piece> pieces_;  // by address, without gaps; the first is the memory itself
};

}  // namespace terrace
