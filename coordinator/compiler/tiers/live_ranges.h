// Live-range splitting: uses of a value with more than kNearMarks layers between them belong to
// different live ranges. For a gradient, layers of further micro-batches that go through the same
// chunk do not count. Between its ranges a value need not be where it is used, nor in the form in
// which it is used (offload.h, encode.h).
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/compiler/graph/builder.h"

namespace terrace::compiler {

inline constexpr int kNearMarks = 2;

using Elements = std::pair<int64_t, int64_t>;  // [begin, end)

// The union, by begin.
std::vector<Elements> Merged(std::vector<Elements> parts);

// Consecutive uses of one value.
struct LiveRange {
  std::vector<size_t> nodes;
  std::vector<Elements> written;
};

// By outermost STEP value.
std::map<int, std::vector<LiveRange>> FindLiveRanges(const Graph& graph,
                                                     const std::vector<Node>& nodes);

// Puts nodes before and after those of a sequence, and gives later ranges a value of their own in
// the place of the first. Borrows the builder, and diverts what is appended to it.
class LiveRangeEdits {
 public:
  explicit LiveRangeEdits(Builder* builder)
      : builder_(*builder), graph_(builder->graph()), nodes_(builder->nodes()) {}

  // A new value that range number `number` uses in the place of `value`.
  int Again(int value, const LiveRange& range, size_t number);
  // What `append` appends to the builder stands before, or after, node `node`.
  template <typename Append>
  void Before(size_t node, const Append& append) {
    Divert(&before_[node], node, append);
  }
  template <typename Append>
  void After(size_t node, const Append& append) {
    Divert(&after_[node], node, append);
  }
  // Once, at the end.
  void Apply();

 private:
  template <typename Append>
  void Divert(std::vector<Node>* to, size_t node, const Append& append) {
    const v1::Phase phase = std::exchange(builder_.phase, nodes_[node].phase);
    builder_.divert = to;
    append();
    builder_.divert = nullptr;
    builder_.phase = phase;
  }
  int Renamed(int inner, int value, int here);

  Builder& builder_;
  Graph& graph_;
  std::vector<Node>& nodes_;
  std::map<size_t, std::vector<Node>> before_, after_;
  std::map<std::pair<int, int>, int> renamed_;  // by inner value and new outer one
};

}  // namespace terrace::compiler
