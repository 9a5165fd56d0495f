// One attention problem with its data, run through the kernels and through a plain double-precision
// reference.
//
// Queries, keys and values are column slices of one fused [T, (heads + 2 kv_heads) head_dim]
// buffer, as in a model, and so are their gradients. All data come from a fixed seed and are
// rounded to the case's element type before either side sees them.
//
// Owns its buffers. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cpu/attention.h"
#include "kernels/op.h"
#include "kernels/tensor_view.h"

namespace terrace::kernels {

struct AttentionShape {
  std::string name;
  int64_t batch = 1, sequence = 1, heads = 1, kv_heads = 1, head_dim = 64, window = 0;
  DType dtype = DType::kF32;
  MatmulPrecision precision = MatmulPrecision::kF32;
  double amplitude = 1;  // standard deviation of queries and keys
};

struct AttentionValues {
  std::vector<double> o, lse, dq, dk, dv;  // [T, heads, d], [batch, heads, sequence], ...
};

class AttentionCase {
 public:
  explicit AttentionCase(const AttentionShape& shape, uint32_t seed = 1);

  // Forward, then backward from the kernel's own outputs. Adds a test failure when a kernel reports
  // an error, writes past its workspace or between the columns that it was given.
  AttentionValues RunKernels(int threads) const;
  // The same on a given engine.
  AttentionValues RunEngine(const cpu::AttentionEngine& engine, int threads) const;
  AttentionValues Reference() const;
  // Only `o` and `lse`, of these inputs in double.
  void ReferenceForward(AttentionValues* values) const;

  AttentionShape shape;
  AttentionAttrs attrs;
  std::vector<double> q, k, v, d_o;  // dense, already rounded to the element type

 private:
  int64_t tokens() const { return shape.batch * shape.sequence; }
  bool Visible(int64_t query, int64_t key) const;
  // Softmax weights of one query of one head over all keys, 0 where it sees none.
  std::vector<double> Weights(int64_t b, int64_t head, int64_t query, double* lse) const;
};

// Largest absolute difference over the largest absolute value of `expected`.
double RelativeError(const std::vector<double>& actual, const std::vector<double>& expected);

}  // namespace terrace::kernels
