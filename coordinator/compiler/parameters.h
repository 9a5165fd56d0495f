// The trainable memory of a stage: which tensors lie where, with their optimizer state.
//
// Tensors whose products share their input (q, k, v; gate, up) lie next to each other and form one
// parameter, so that one product computes all of them. Parameters of a layer share one buffer a
// kind (weights, adam_m, adam_v); checkpoints see single tensors through the state manifest.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "coordinator/compiler/graph.h"
#include "coordinator/model/model.h"

namespace terrace::compiler {

struct Parameter {
  std::vector<const Tensor*> tensors;  // stored one after the other
  int weight = kNone;                  // values, all of one shape
  int adam_m = kNone;                  // kNone without an optimizer
  int adam_v = kNone;
  int layer = kNone;

  // Weight decay acts on matrices and tables, not on norms and biases.
  bool decays() const { return tensors[0]->shape.size() >= 2; }
};

// Thread-compatible: plain data.
class Parameters {
 public:
  // Adds the values to `graph`. `model` outlives the result.
  Parameters(const Model& model, bool with_optimizer, Graph* graph);

  const std::vector<Parameter>& all() const { return all_; }
  // The weight of the parameter that starts with the tensor of this role; absent when the model has
  // none.
  Slice Weight(const Graph& graph, TensorRole role, int layer = kNone) const;

 private:
  void Group(const Model& model);
  void Place(int Parameter::*kind, const char* name, v1::BufferClass cls, Graph* graph);

  std::vector<Parameter> all_;  // in the order of the forward pass
  std::map<std::pair<TensorRole, int>, size_t> by_role_;
};

}  // namespace terrace::compiler
