// SPDX-License-Identifier: Apache-2.0
#include "worker/data/document_samples.h"

#include <algorithm>
#include <utility>

namespace terrace {
namespace {

constexpr int kLengthBits = 21;

}  // namespace

DocumentSamples::DocumentSamples(std::vector<int64_t> lengths)
    : lengths_(std::move(lengths)), samples_(lengths_.size()), tokens_(lengths_.size()) {}

void DocumentSamples::Add(int64_t begin, int64_t tokens, const CountsAny& counts_any) {
  // The last token of a document is only a target.
  int64_t rest = tokens - 1;
  for (int64_t count = 0; rest > 0; begin += count, rest -= count) {
    count = std::min(rest, lengths_.back());
    if (!counts_any(begin + 1, count)) {
      ++left_out_;
      continue;
    }
    const auto bucket =
        std::lower_bound(lengths_.begin(), lengths_.end(), count) - lengths_.begin();
    AddTo(static_cast<size_t>(bucket), begin, count);
  }
}

void DocumentSamples::AddTo(size_t bucket, int64_t begin, int64_t count) {
  samples_[bucket].push_back(static_cast<uint64_t>(begin) << kLengthBits |
                             static_cast<uint64_t>(count));
  tokens_[bucket] += count;
}

int64_t DocumentSamples::size() const {
  int64_t all = 0;
  for (const auto& bucket : samples_) all += static_cast<int64_t>(bucket.size());
  return all;
}

std::vector<int64_t> DocumentSamples::sizes() const {
  std::vector<int64_t> sizes;
  for (const auto& bucket : samples_) sizes.push_back(static_cast<int64_t>(bucket.size()));
  return sizes;
}

DocumentSample DocumentSamples::At(int bucket, int64_t index) const {
  const uint64_t packed = samples_[bucket][index];
  return {.begin = static_cast<int64_t>(packed >> kLengthBits),
          .count = static_cast<int64_t>(packed & ((uint64_t{1} << kLengthBits) - 1))};
}

}  // namespace terrace
