// What tells one sequence of tokens from another, at little cost: a job that resumes compares it
// with what its checkpoint says, because files of the same name may hold other tokens by then.
//
// Whatever the tokens are stored in (text, .bin of two or four bytes, one file or several) does not
// matter. Pure. Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace terrace {

class TokenSequence;

struct TokenSum {
  int64_t tokens = 0;
  uint64_t hash = 0;  // of all tokens up to 16 Mi, of parts spread evenly over more
  bool operator==(const TokenSum&) const = default;
};

// Of the files of data.train and data.validation; no tokens: there are none.
struct TokenSums {
  TokenSum train;
  TokenSum validation;
  // Of a mixture, the tokens of each source: the same tokens cut elsewhere are other samples.
  std::vector<int64_t> sources = {};
};

TokenSum SumOf(const TokenSequence& tokens);

}  // namespace terrace
