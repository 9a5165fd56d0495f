// Byte-pair encoding of one piece: begin with its smallest tokens, merge the neighbours of lowest
// rank (the leftmost of equals) until no pair has one (Sennrich et al. 2016, arXiv 1508.07909).
// O(n log n), whatever the piece.
//
// Thread-safe after construction; the scratch is the caller's.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace terrace::tokenizer_json {

class BpeMerges {
 public:
  struct Scratch {
    struct Symbol {
      int32_t id;
      int32_t previous;
      int32_t next;
    };
    struct Candidate {
      int32_t rank;
      int32_t position;  // of the left symbol
      int32_t merged;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  // Ranks grow in the order of calls.
  void Add(int32_t left, int32_t right, int32_t merged);
  // Appends what becomes of the tokens `start`, which holds fewer than 2^31.
  void Merge(const std::vector<int32_t>& start, Scratch* scratch, std::vector<int32_t>* ids) const;

 private:
  struct Rule {
    int32_t rank;
    int32_t merged;
  };
  static uint64_t Key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  void Propose(int32_t left, Scratch* scratch) const;

  absl::flat_hash_map<uint64_t, Rule> merges_;
  int32_t next_rank_ = 0;
};

}  // namespace terrace::tokenizer_json
