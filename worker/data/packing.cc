// SPDX-License-Identifier: Apache-2.0
#include "worker/data/packing.h"

#include <numeric>
#include <set>

namespace terrace {
namespace {

// Indices of the samples, the longest first: a counting sort, as there are few lengths.
std::vector<int64_t> LongestFirst(std::span<const int64_t> tokens, int64_t capacity) {
  std::vector<int64_t> at(capacity + 1, 0);  // by length: where the next sample of it goes
  for (const int64_t length : tokens) ++at[capacity - length];
  std::exclusive_scan(at.begin(), at.end(), at.begin(), int64_t{0});
  std::vector<int64_t> order(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i)
    order[at[capacity - tokens[i]]++] = static_cast<int64_t>(i);
  return order;
}

}  // namespace

PackedRows PackBestFit(std::span<const int64_t> tokens, int64_t capacity) {
  const std::vector<int64_t> samples = LongestFirst(tokens, capacity);
  std::vector<int64_t> row_of(samples.size());
  std::vector<std::vector<int64_t>> rows_with(capacity + 1);  // by room: rows that have it
  std::set<int64_t> rooms;                                    // of which there are rows
  std::vector<int64_t> sizes;                                 // samples of each row
  for (const int64_t sample : samples) {
    const auto room = rooms.lower_bound(tokens[sample]);
    int64_t left = capacity - tokens[sample], row = static_cast<int64_t>(sizes.size());
    if (room == rooms.end()) {
      sizes.push_back(0);
    } else {
      std::vector<int64_t>& rows = rows_with[*room];
      left = *room - tokens[sample];
      row = rows.back();
      rows.pop_back();
      if (rows.empty()) rooms.erase(room);
    }
    row_of[sample] = row;
    ++sizes[row];
    if (left == 0) continue;
    rows_with[left].push_back(row);
    rooms.insert(left);
  }
  PackedRows packed;
  for (const int64_t size : sizes) packed.first.push_back(packed.first.back() + size);
  std::vector<int64_t> next(packed.first.begin(), packed.first.end() - 1);
  packed.order.resize(samples.size());
  for (const int64_t sample : samples) packed.order[next[row_of[sample]]++] = sample;
  return packed;
}

}  // namespace terrace
