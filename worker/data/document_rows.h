// What the rows of a batch hold of documents: a sample each (document_samples.h), or, packed, as
// many samples as fit (packing.h).
//
// Packed, a sample takes 16 bytes and a row 8; Close takes 24 more a sample while it works.
//
// Thread-safe after Close.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "worker/data/document_samples.h"
#include "worker/data/packing.h"

namespace terrace {

class DocumentRows {
 public:
  // As DocumentSamples; `packs`: of one length.
  DocumentRows(std::vector<int64_t> lengths, bool packs)
      : samples_(std::move(lengths)), packs_(packs) {}

  // As DocumentSamples::Add, before Close.
  void Add(int64_t begin, int64_t tokens, const DocumentSamples::CountsAny& counts_any) {
    samples_.Add(begin, tokens, counts_any);
  }
  // As DocumentSamples::AddOne, where nothing is packed.
  void AddOne(int64_t begin, int64_t count) { samples_.AddOne(begin, count); }
  // After the last Add.
  void Close();

  const std::vector<int64_t>& lengths() const { return samples_.lengths(); }
  int64_t left_out() const { return samples_.left_out(); }
  // Of all samples of the bucket.
  int64_t tokens(int bucket) const { return samples_.tokens(bucket); }
  std::vector<int64_t> sizes() const;  // rows of each bucket
  int64_t size() const;                // all rows

  // Calls visit with each sample of a row, in the order in which they lie in it.
  template <typename Visit>
  void ForEach(int bucket, int64_t row, const Visit& visit) const {
    if (!packs_) return visit(samples_.At(bucket, row));
    for (int64_t i = packed_.first[row]; i < packed_.first[row + 1]; ++i)
      visit(samples_.At(bucket, packed_.order[i]));
  }
  // Tokens of a row, without padding.
  int64_t Count(int bucket, int64_t row) const {
    int64_t count = 0;
    ForEach(bucket, row, [&count](const DocumentSample& sample) { count += sample.count; });
    return count;
  }

 private:
  DocumentSamples samples_;
  const bool packs_;
  PackedRows packed_;
};

}  // namespace terrace
