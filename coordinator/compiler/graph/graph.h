// The compiler's own form of a stage: values and the operations on them, in the order in which they
// will be emitted. Passes append to it or rewrite it; emit.h turns it into a v1::Program.
//
// A value is a piece of memory with an element type and a shape. A slice is a rectangle of a value:
// what an operation touches. A value may lie inside another one (a tensor in its layer's weights, a
// gradient in its bucket), so that a pass can group memory without rewriting the operations that
// use it.
//
// Thread-compatible: plain data.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "kernels/op.h"
#include "proto/v1/program.pb.h"

namespace terrace::compiler {

inline constexpr int kNone = -1;

using Dims = std::vector<int64_t>;

struct Value {
  std::string name;
  v1::BufferClass cls = v1::ACTIVATION;
  kernels::DType dtype = kernels::DType::kF32;
  Dims shape;
  v1::Lifetime lifetime = v1::STEP;
  v1::Tier tier = v1::DEVICE;  // of what lies inside another value: that one's
  int sequence = kNone;        // of a STEP value: the one sequence that uses it
  int inside = kNone;          // another value that holds this one ...
  int64_t inside_offset = 0;   // ... from this element on
  bool tile = false;           // prefetched for one product only (tiles.h)
  int parameter = kNone;       // index in Parameters::all() of a weight, also of a gathered copy
  int ring = kNone;            // of a host buffer that copies pass through (staging.h)

  int64_t elements() const;
};

// Elements offset, offset + 1, ... of `value`, as a tensor whose rows may be strided.
struct Slice {
  int value = kNone;
  int64_t offset = 0;  // elements
  kernels::TensorShape shape;

  bool absent() const { return value == kNone; }
};

kernels::TensorShape DenseShape(kernels::DType dtype, const Dims& dims);

// The same memory as a tensor of other dimensions: dimension 0 stays, the rest is cut anew.
Slice Reshape(Slice slice, const Dims& dims);
// Columns [begin, begin + count) of a two-dimensional slice.
Slice Columns(Slice slice, int64_t begin, int64_t count);
// Rows [begin, begin + count).
Slice Rows(Slice slice, int64_t begin, int64_t count);
// Elements [begin, begin + count) of a dense slice, as one dimension.
Slice Range(const Slice& slice, int64_t begin, int64_t count);
// All elements of a dense slice, as one dimension.
Slice Flat(const Slice& slice);

struct Compute {
  kernels::Op op = kernels::Op::kFill;
  kernels::OpAttrs attrs;
};
struct Collective {
  v1::CollectiveKind kind = v1::ALL_REDUCE;
  int group = 0;
};
struct Transfer {
  v1::TransferKind kind = v1::SEND;
  int group = 0;
  int peer_stage = 0;
  int done_by_pass = kNone;  // of a send: the pass that may wait until it has left
};
// Between tiers; operands in pairs, from and to.
struct Copy {
  v1::CopyKind kind = v1::TO_DEVICE;
};
struct Input {
  v1::InputKind kind = v1::LOAD_BATCH;
};
struct Output {
  v1::OutputKind kind = v1::STEP_STATS;
};

// Where the gradient of operand 0 must be summed over a group although the forward pass does
// nothing: the entry of a tensor-parallel region (f in Shoeybi et al. 2019, arXiv 1909.08053). Only
// in what autodiff reads, never in a sequence.
struct EnterTensorParallel {
  int group = 0;
};
// All of a ring attention: its nodes stand before it. Only in what autodiff reads.
//   operands: q, k, v, o (activation type), lse, key-value pairs as they stand here [T, 2, kv, d],
//   starts ?, places ?
struct RingAttention {
  kernels::AttentionBlockAttrs attrs;  // of step 0
  int group = 0;
};

struct Node {
  std::variant<Compute, Collective, Transfer, Copy, Input, Output, EnterTensorParallel,
               RingAttention>
      what;
  std::vector<Slice> operands;  // in the order of kernels/op.h or program.proto
  Slice workspace;              // set by workspace.h
  v1::Phase phase = v1::FORWARD;
  int layer = kNone;
  int micro_batch = kNone;
  std::string text;
  int mark = 0;          // how many layers of passes began before it (Builder::Mark)
  int turn = 0;          // as mark, but further micro-batches over the same layers do not count
  int pass = 0;          // how many passes of micro-batches began before it
  int fetch = kNone;     // nodes of one number prefetch one value to the device (fetch.h)
  bool has_rule = true;  // false: part of a larger operation that has the backward rule, or before
                         // everything that is trained
  // The rule of a product computes these gradients (trained.h): of its first operand, of its
  // weight.
  bool input_gradient = true, weight_gradient = true;
  int stream = 0;          // set by streams.h
  std::vector<int> waits;  // set by streams.h

  struct Standing {
    int mark = 0, turn = 0, pass = 0;
  };
  Standing standing() const { return {mark, turn, pass}; }
  void StandAt(const Standing& at) { mark = at.mark, turn = at.turn, pass = at.pass; }

  const Compute* compute() const { return std::get_if<Compute>(&what); }
  const Collective* collective() const { return std::get_if<Collective>(&what); }
  const Copy* copy() const { return std::get_if<Copy>(&what); }
};

// A node that moves bytes between ranks.
bool Communicates(const Node& node);

kernels::Access AccessOf(const Node& node, int operand);
bool Reads(const Node& node, int operand);
bool Writes(const Node& node, int operand);
std::vector<kernels::TensorShape> ShapesOf(const Node& node);

struct Sequence {
  std::string name;
  std::vector<Node> nodes;
  int64_t sequence_length = 0;  // v1::Sequence.sequence_length
};

struct Graph {
  std::vector<Value> values;
  std::vector<Sequence> sequences;
  std::vector<v1::Stream> streams;  // set by streams.h
  std::vector<v1::Group> groups;
  int fetches = 0;  // numbers of fetches given out

  int Add(Value value);
  Slice Whole(int value) const;
  // The slice of the outermost value that holds `slice`.
  Slice Root(Slice slice) const;
  v1::Tier TierOf(const Slice& slice) const { return values[Root(slice).value].tier; }
};

}  // namespace terrace::compiler
