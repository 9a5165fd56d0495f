// SPDX-License-Identifier: Apache-2.0
#include "worker/probe/cases.h"

#include <cmath>
#include <initializer_list>

namespace terrace {
namespace {

using kernels::DType;
using kernels::MatmulPrecision;
using kernels::Op;
using kernels::OpAttrs;
using kernels::TensorShape;

// Larger ones take too long on slow machines, and rates no longer change.
constexpr double kThoroughFlopsMax = 1.1e9;
constexpr double kBriefFlopsMax = 0.3e9;
// Some milliseconds of a data-centre GPU.
constexpr double kGpuThoroughFlopsMax = 1.2e12;
constexpr double kGpuBriefFlopsMax = 0.3e12;

struct Sizes {
  std::vector<int64_t> matmul;
  std::vector<int64_t> sequence, head, heads;
  std::vector<int64_t> loss_rows, vocabulary, hidden;
  std::vector<int64_t> rows, columns;
  std::vector<int64_t> vector;  // elements of optimizer updates and sums
  double flops_max = 0;
};

Sizes SizesOf(ProbeDepth depth) {
  if (depth == ProbeDepth::kBrief) {
    return {.matmul = {64, 512},
            .sequence = {256},
            .head = {64},
            .heads = {8},
            .loss_rows = {128},  // its gradient has three times the FLOPs
            .vocabulary = {1024},
            .hidden = {256},
            .rows = {1024},
            .columns = {512},
            .vector = {1 << 16, 1 << 21},
            .flops_max = kBriefFlopsMax};
  }
  return {.matmul = {32, 128, 512, 2048},
          .sequence = {64, 256, 1024},
          .head = {16, 64, 128},
          .heads = {4, 32},
          .loss_rows = {256, 2048},
          .vocabulary = {256, 4096},
          .hidden = {64, 256, 768},
          .rows = {32, 256, 2048},  // the fewest are one thread's work, but for the longest rows
          .columns = {64, 512, 2048},
          .vector = {1 << 12, 1 << 16, 1 << 20, 1 << 23},
          .flops_max = kThoroughFlopsMax};
}

Sizes GpuSizesOf(ProbeDepth depth) {
  if (depth == ProbeDepth::kBrief) {
    return {.matmul = {512, 4096},
            .sequence = {2048},
            .head = {128},
            .heads = {16},
            .loss_rows = {1024},
            .vocabulary = {32768},
            .hidden = {1024},
            .rows = {8192},
            .columns = {4096},
            .vector = {1 << 20, 1 << 26},
            .flops_max = kGpuBriefFlopsMax};
  }
  return {.matmul = {256, 1024, 4096, 16384},
          .sequence = {512, 2048, 8192},
          .head = {64, 128},
          .heads = {8, 32},
          .loss_rows = {1024, 8192},
          .vocabulary = {32768, 131072},
          .hidden = {1024, 4096},
          .rows = {1024, 16384},
          .columns = {768, 2048, 8192},
          .vector = {1 << 16, 1 << 20, 1 << 24, 1 << 27},
          .flops_max = kGpuThoroughFlopsMax};
}

TensorShape Of(DType dtype, std::initializer_list<int64_t> sizes) {
  TensorShape shape = {.dtype = dtype, .dims = static_cast<int>(sizes.size())};
  std::copy(sizes.begin(), sizes.end(), shape.size.begin());
  shape.row_stride = shape.RowElements();
  return shape;
}
const TensorShape kAbsent;

// Collects what is small enough.
class Cases {
 public:
  explicit Cases(double flops_max) : flops_max_(flops_max) {}
  void Add(Op op, const OpAttrs& attrs, std::vector<TensorShape> operands) {
    if (static_cast<double>(kernels::Flops(op, attrs, operands)) > flops_max_) return;
    cases_.push_back({op, attrs, std::move(operands)});
  }
  std::vector<ProbeCase> Take() && { return std::move(cases_); }

 private:
  const double flops_max_;
  std::vector<ProbeCase> cases_;
};

// A forward product multiplies activations by weights as they are stored, rows of outputs; their
// gradient by the weights the other way round; the weights' gradient sums over tokens. The gradient
// of what was computed is the first operand of both.
void AddMatmul(int64_t m, int64_t n, int64_t k, DType act, MatmulPrecision precision,
               Cases* cases) {
  const auto add = [&](kernels::MatmulAttrs attrs, TensorShape a, TensorShape b, TensorShape c) {
    attrs.precision = precision;
    const bool forward = attrs.transpose_b;
    if (precision == MatmulPrecision::kFP8 && !forward) attrs.gradient = kernels::Fp8Gradient::kA;
    cases->Add(Op::kMatmul, attrs, {a, b, c, kAbsent, kAbsent, kAbsent});
  };
  add({.transpose_b = true}, Of(act, {m, k}), Of(DType::kF32, {n, k}), Of(act, {m, n}));
  add({}, Of(act, {m, k}), Of(DType::kF32, {k, n}), Of(act, {m, n}));
  add({.transpose_a = true, .accumulate = true}, Of(act, {k, m}), Of(act, {k, n}),
      Of(DType::kF32, {m, n}));
}

void AddAttention(int64_t sequence, int64_t head, int64_t heads, DType act,
                  MatmulPrecision precision, Cases* cases) {
  const kernels::AttentionAttrs attrs = {.sequence = sequence,
                                         .scale = 1 / std::sqrt(static_cast<float>(head)),
                                         .precision = precision};
  const TensorShape rows = Of(act, {sequence, heads, head});
  const TensorShape lse = Of(DType::kF32, {1, heads, sequence});
  cases->Add(Op::kAttention, attrs, {rows, rows, rows, rows, lse, kAbsent, kAbsent});
  cases->Add(Op::kAttentionGrad, attrs,
             {rows, rows, rows, rows, lse, rows, rows, rows, rows, kAbsent, kAbsent});
}

void AddLoss(int64_t rows, int64_t vocabulary, int64_t hidden, DType act, MatmulPrecision precision,
             Cases* cases) {
  const kernels::LossAttrs attrs = {.chunk_rows = rows, .precision = precision};
  const TensorShape x = Of(act, {rows, hidden}), weight = Of(DType::kF32, {vocabulary, hidden}),
                    targets = Of(DType::kI32, {rows}), stats = Of(DType::kF32, {2});
  cases->Add(Op::kLmHeadLoss, attrs, {x, weight, targets, stats, kAbsent});
  cases->Add(Op::kLmHeadLossGrad, attrs, {x, weight, targets, stats, x, weight, kAbsent, kAbsent});
}

void AddRows(int64_t n, int64_t d, DType act, Cases* cases) {
  const TensorShape x = Of(act, {n, d}), column = Of(DType::kF32, {n}),
                    weight = Of(DType::kF32, {d});
  const kernels::NoAttrs none;
  const kernels::NormAttrs norm;
  const kernels::ActivationAttrs gelu, silu = {kernels::Activation::kSilu};
  cases->Add(Op::kLayerNorm, norm, {x, weight, weight, x, column, column});
  cases->Add(Op::kLayerNormGrad, norm, {x, x, weight, column, column, x, x, weight, weight});
  cases->Add(Op::kRmsNorm, norm, {x, weight, x, column});
  cases->Add(Op::kRmsNormGrad, norm, {x, x, weight, column, x, x, weight});
  cases->Add(Op::kBiasGrad, kernels::AccumulateAttrs{}, {x, weight});
  cases->Add(Op::kGelu, gelu, {x, x});
  cases->Add(Op::kGeluGrad, gelu, {x, x, x});
  cases->Add(Op::kSwiglu, silu, {x, x, x});
  cases->Add(Op::kSwigluGrad, silu, {x, x, x, x, x});
  cases->Add(Op::kAddResidual, none, {x, x, kAbsent, x});
  cases->Add(Op::kAdd, none, {x, x});
  if (d > 64) {  // several heads; the rows of one are those of another shape's several
    const TensorShape heads = Of(act, {n, d / 64, 64}), table = Of(DType::kF32, {n, 64});
    cases->Add(Op::kRope, kernels::RopeAttrs{.sequence = n}, {heads, table});
  }
  if (act != DType::kF32) return;
  const TensorShape targets = Of(DType::kI32, {n}), rows = Of(DType::kF32, {n, 3}),
                    all = Of(DType::kF32, {1, n, 3});
  const kernels::CrossEntropyAttrs loss = {.shard_rows = d, .vocabulary = d};
  cases->Add(Op::kCrossEntropyRows, loss, {x, targets, rows});
  cases->Add(Op::kCrossEntropyGrad, loss, {targets, all, x, kAbsent, kAbsent});
}

void AddVectors(int64_t n, Cases* cases) {
  const TensorShape x = Of(DType::kF32, {n}), one = Of(DType::kF32, {1}),
                    four = Of(DType::kF32, {4});
  cases->Add(Op::kSquaredNorm, kernels::ScaleAttrs{}, {x, one});
  cases->Add(Op::kUpdate, kernels::UpdateAttrs{}, {x, x, x, x, four, four});
}

void AddMatmuls(const Sizes& sizes, DType act, MatmulPrecision precision, Cases* cases) {
  for (const int64_t m : sizes.matmul) {
    for (const int64_t n : sizes.matmul) {
      for (const int64_t k : sizes.matmul) AddMatmul(m, n, k, act, precision, cases);
    }
  }
}

void AddProducts(const Sizes& sizes, DType act, MatmulPrecision precision, Cases* cases) {
  AddMatmuls(sizes, act, precision, cases);
  for (const int64_t rows : sizes.loss_rows) {
    for (const int64_t vocabulary : sizes.vocabulary) {
      for (const int64_t hidden : sizes.hidden) {
        AddLoss(rows, vocabulary, hidden, act, precision, cases);
      }
    }
  }
}

void AddOf(const Sizes& sizes, DType act, MatmulPrecision precision, Cases* cases) {
  AddProducts(sizes, act, precision, cases);
  for (const int64_t sequence : sizes.sequence) {
    for (const int64_t head : sizes.head) {
      for (const int64_t heads : sizes.heads) {
        AddAttention(sequence, head, heads, act, precision, cases);
      }
    }
  }
  for (const int64_t rows : sizes.rows) {
    for (const int64_t columns : sizes.columns) AddRows(rows, columns, act, cases);
  }
}

}  // namespace

std::vector<ProbeCase> ProbeCases(ProbeDepth depth, ProbeTarget target) {
  const Sizes sizes = target == ProbeTarget::kGpu ? GpuSizesOf(depth) : SizesOf(depth);
  Cases cases(sizes.flops_max);
  AddOf(sizes, DType::kF32, MatmulPrecision::kF32, &cases);
  // On the CPU it is fp32.
  if (target == ProbeTarget::kGpu) AddProducts(sizes, DType::kF32, MatmulPrecision::kTF32, &cases);
  AddOf(sizes, DType::kBF16, MatmulPrecision::kBF16, &cases);
  if (target == ProbeTarget::kGpu) {
    // All else takes in fp16 what it takes in bf16; products of 8 bits have nothing else.
    AddProducts(sizes, DType::kF16, MatmulPrecision::kF16, &cases);
    AddMatmuls(sizes, DType::kBF16, MatmulPrecision::kFP8, &cases);
  }
  for (const int64_t n : sizes.vector) AddVectors(n, &cases);
  return std::move(cases).Take();
}

}  // namespace terrace
