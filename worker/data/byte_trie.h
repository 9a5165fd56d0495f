// Strings with values, walked byte by byte.
//
// Thread-safe once filled.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace terrace {

class ByteTrie {
 public:
  static constexpr int32_t kNone = -1;
  static constexpr int32_t kRoot = 0;

  // `value` >= 0. The last one of equal keys stays.
  void Add(std::string_view key, int32_t value) {
    int32_t node = kRoot;
    for (const char c : key) {
      const auto [edge, is_new] = edges_.emplace(EdgeKey(node, c), values_.size());
      if (is_new) values_.push_back(kNone);
      node = edge->second;
    }
    values_[node] = value;
  }

  // The node behind `c`; kNone when no key goes on so.
  int32_t Step(int32_t node, char c) const {
    const auto edge = edges_.find(EdgeKey(node, c));
    return edge == edges_.end() ? kNone : edge->second;
  }

  int32_t value(int32_t node) const { return values_[node]; }

  // Bytes of the longest key that `text` begins with; 0 when there is none.
  size_t LongestPrefix(std::string_view text) const {
    size_t longest = 0;
    int32_t node = kRoot;
    for (size_t i = 0; i < text.size() && (node = Step(node, text[i])) != kNone; ++i) {
      if (values_[node] != kNone) longest = i + 1;
    }
    return longest;
  }

 private:
  static uint64_t EdgeKey(int32_t node, char c) {
    return uint64_t{static_cast<uint32_t>(node)} << 8 | static_cast<unsigned char>(c);
  }
  absl::flat_hash_map<uint64_t, int32_t> edges_;
  std::vector<int32_t> values_ = {kNone};
};

}  // namespace terrace
