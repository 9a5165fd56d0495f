// Appends operations to one sequence of a graph. Holds what consecutive operations have in common
// (phase, layer, micro-batch), so that passes name only what differs.
//
// While a record is set, what is appended is also copied there: the record of a forward pass is
// what recomputation repeats and the backward pass follows.
//
// Borrows the graph and the record. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "coordinator/compiler/graph/graph.h"

namespace terrace::compiler {

// The name of a value (Builder::NewValue) with other words in place of its micro-batch:
// "d.mb3.layer0.qkv" -> "d.layer0.qkv".
std::string ReplaceMicroBatch(const std::string& name, const std::string& by);

class Builder {
 public:
  Builder(Graph* graph, int sequence) : graph_(graph), sequence_(sequence) {}

  v1::Phase phase = v1::FORWARD;
  int layer = kNone;
  int micro_batch = kNone;
  bool has_rule = true;
  int fetch = kNone;
  std::string variant;  // of a pass beside another: stands in names and texts; "" for the usual one
  bool goes_on = false;  // layers begin that an earlier micro-batch has just been through
  std::vector<Node>* record = nullptr;
  std::vector<Node>* divert = nullptr;  // where to append instead, when set

  Graph& graph() { return *graph_; }
  int sequence() const { return sequence_; }
  std::vector<Node>& nodes() { return graph_->sequences[sequence_].nodes; }

  // A layer of a pass, or the head, begins: the distances that prefetching and the reuse of memory
  // across streams are measured in. What takes no time, as looking up rows does, is no layer: it
  // would hide nothing.
  void Mark() {
    ++mark_;
    if (!goes_on) ++turn_;
  }
  int mark() const { return mark_; }
  // A pass of a micro-batch over a model chunk begins.
  void MarkPass() { ++pass_; }

  // Passes that began so far.
  int pass() const { return pass_; }

  // A new STEP value of this sequence, named after the micro-batch and layer ("mb0.layer3.qkv").
  Slice NewValue(const std::string& name, v1::BufferClass cls, kernels::DType dtype,
                 const Dims& dims);

  // A new value for the gradient of `value`, named after it.
  Slice NewGradientOf(const Value& value, v1::BufferClass cls = v1::ACTIVATION);

  void Compute(kernels::Op op, kernels::OpAttrs attrs, std::vector<Slice> operands,
               std::string text);
  // Over one rank nothing happens: `group` is kNone then.
  void AllReduce(int group, Slice operand, std::string text);
  void Collective(v1::CollectiveKind kind, int group, Slice from, Slice to, std::string text);
  void Send(int group, int peer_stage, int done_by_pass, Slice operand, std::string text);
  void Receive(int group, int peer_stage, Slice operand, std::string text);
  // One dense slice to another tier; several at once as from, to, from, to.
  void Copy(v1::CopyKind kind, std::vector<Slice> pairs, std::string text);
  void Input(v1::InputKind kind, std::vector<Slice> operands, std::string text);
  void Output(v1::OutputKind kind, Slice operand, std::string text);
  // A copy of `node` with the present phase and marks.
  void Repeat(Node node);
  // Into the record alone.
  void RecordOnly(Node node);

 private:
  template <typename What>
  void Append(What what, std::vector<Slice> operands, std::string text) {
    if (!variant.empty()) text = variant + " " + text;
    Node node = {.what = std::move(what), .operands = std::move(operands), .text = std::move(text)};
    Stamp(&node);
    if (record != nullptr) record->push_back(node);
    (divert != nullptr ? *divert : nodes()).push_back(std::move(node));
  }
  void Stamp(Node* node) const;

  Graph* graph_;
  int sequence_;
  int mark_ = 0;
  int turn_ = 0;
  int pass_ = 0;
};

}  // namespace terrace::compiler
