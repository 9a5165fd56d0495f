// The samples that documents give: each document is one, or several that follow each other where it
// is longer than the longest bucket. A sample lies in the smallest bucket that holds it.
//
// Eight bytes a sample: 21 bits of length, 43 of position. Thread-safe after the last Add.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace terrace {

// Tokens [begin, begin + count), each with the token that follows it as its target.
struct DocumentSample {
  int64_t begin = 0;
  int64_t count = 0;
};

// Where a sample can begin at most.
inline constexpr int64_t kMaxDocumentTokens = int64_t{1} << 43;

class DocumentSamples {
 public:
  // `lengths`: of the buckets, ascending, at most 2^20 each.
  explicit DocumentSamples(std::vector<int64_t> lengths);

  // Whether the loss counts any of the `count` tokens from `begin` on.
  using CountsAny = std::function<bool(int64_t begin, int64_t count)>;
  // A document of `tokens` tokens from `begin` on; nothing when it has none to predict. A sample
  // without a target that counts is left out. REQUIRES: begin + tokens <= kMaxDocumentTokens.
  void Add(int64_t begin, int64_t tokens, const CountsAny& counts_any);
  // A sample as it is, in the first bucket. REQUIRES: count < 2^21.
  void AddOne(int64_t begin, int64_t count) { AddTo(0, begin, count); }

  const std::vector<int64_t>& lengths() const { return lengths_; }
  int64_t size() const;  // all samples
  int64_t left_out() const { return left_out_; }
  std::vector<int64_t> sizes() const;  // of each bucket
  // Of all samples of the bucket.
  int64_t tokens(int bucket) const { return tokens_[bucket]; }
  // In the order in which they were added.
  DocumentSample At(int bucket, int64_t index) const;

 private:
  void AddTo(size_t bucket, int64_t begin, int64_t count);

  const std::vector<int64_t> lengths_;
  std::vector<std::vector<uint64_t>> samples_;  // by bucket
  std::vector<int64_t> tokens_;                 // of each
  int64_t left_out_ = 0;
};

}  // namespace terrace
