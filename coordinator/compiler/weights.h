// The weights as one pass sees them: those that are always there, and with ZeRO-3 those that are
// gathered for it, on first use (the gather moves ahead of the use in prefetch.h).
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>

#include "coordinator/compiler/builder.h"
#include "coordinator/compiler/parameters.h"

namespace terrace::compiler {

class Weights {
 public:
  // Borrows both.
  Weights(const Parameters& parameters, const Parallel& parallel, Builder* builder)
      : parameters_(parameters), parallel_(parallel), builder_(*builder) {}

  // The weight of the parameter that starts with the tensor of this role; absent when the model has
  // none.
  Slice Of(TensorRole role, int layer = kNone);
  // What was gathered counts as gone: a new layer begins.
  void Forget() { gathered_.clear(); }

 private:
  void Gather(const Unit& unit);

  const Parameters& parameters_;
  const Parallel& parallel_;
  Builder& builder_;
  std::map<int, int> gathered_;  // parameter -> value
};

// True for the gather of a unit's weights into memory of its own.
bool GathersWeights(const Graph& graph, const Node& node);

}  // namespace terrace::compiler
