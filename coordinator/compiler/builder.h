// Appends operations to one sequence of a graph. Holds what consecutive operations have in common
// (phase, layer, micro-batch), so that passes name only what differs.
//
// Borrows the graph. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "coordinator/compiler/graph.h"

namespace terrace::compiler {

class Builder {
 public:
  Builder(Graph* graph, int sequence) : graph_(graph), sequence_(sequence) {}

  v1::Phase phase = v1::FORWARD;
  int layer = kNone;
  int micro_batch = kNone;

  Graph& graph() { return *graph_; }
  std::vector<Node>& nodes() { return graph_->sequences[sequence_].nodes; }

  // A new STEP value of this sequence, named after the micro-batch and layer ("mb0.layer3.qkv").
  Slice NewValue(const std::string& name, v1::BufferClass cls, kernels::DType dtype,
                 const Dims& dims);

  // A new value for the gradient of `value`, named after it.
  Slice NewGradientOf(const Value& value, v1::BufferClass cls = v1::ACTIVATION);

  void Compute(kernels::Op op, kernels::OpAttrs attrs, std::vector<Slice> operands,
               std::string text);
  void AllReduce(int group, Slice operand, std::string text);
  void Input(v1::InputKind kind, std::vector<Slice> operands, std::string text);
  void Output(v1::OutputKind kind, Slice operand, std::string text);

 private:
  template <typename What>
  void Append(What what, std::vector<Slice> operands, std::string text) {
    nodes().push_back({.what = std::move(what),
                       .operands = std::move(operands),
                       .phase = phase,
                       .layer = layer,
                       .micro_batch = micro_batch,
                       .text = std::move(text)});
  }

  Graph* graph_;
  int sequence_;
};

}  // namespace terrace::compiler
