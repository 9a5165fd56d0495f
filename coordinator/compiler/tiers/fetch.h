// Brings what rests off the device back in time: the nodes of one fetch copy one value, piece by
// piece, and with ZeRO gather it.
//
// A fetch stands where the value is used first when a pass appends it. PlaceFetches moves each to
// where the use of the fetch kFetchAhead before begins: so many values at most are on the way or
// waiting, whatever the passes between them, and all streams stay busy. No fetch moves by more than
// as many layers, nor to before what it reads is written. What a backward pass asked for too early
// comes later.
//
// What several micro-batches of a run over one chunk use (schedule breadth_first) is in no such
// queue: it comes piece by piece while the run before it computes.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "coordinator/compiler/graph/builder.h"

namespace terrace::compiler {

// While one value is used, the next is there and the one after it on its way.
inline constexpr int kFetchAhead = 2;

// What is appended while it lives is one fetch. Borrows the builder. Thread-compatible.
class FetchScope {
 public:
  explicit FetchScope(Builder* builder)
      : builder_(*builder),
        outer_(std::exchange(builder->fetch, builder->graph().fetches++)),
        had_rule_(std::exchange(builder->has_rule, false)) {}
  ~FetchScope() {
    builder_.fetch = outer_;
    builder_.has_rule = had_rule_;
  }
  FetchScope(const FetchScope&) = delete;

 private:
  Builder& builder_;
  const int outer_;
  const bool had_rule_;
};

// A fetch into memory that stays keeps its place.
void PlaceFetches(const Graph& graph, std::vector<Node>* nodes);

}  // namespace terrace::compiler
