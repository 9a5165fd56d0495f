// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/bench_case.h"

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

namespace terrace::kernels::bench {
namespace {

constexpr double kOfLibrary = 0.95, kOfCopies = 0.85;
constexpr double kAttention = 600e12, kAttentionGrad = 450e12;  // head size 128, sequence 8192

TensorShape Shape(DType dtype, std::vector<int64_t> size) {
  TensorShape shape = {.dtype = dtype, .dims = static_cast<int>(size.size())};
  for (size_t i = 0; i < size.size(); ++i) shape.size[i] = size[i];
  shape.row_stride = shape.RowElements();
  return shape;
}
TensorShape F32(std::vector<int64_t> size) { return Shape(DType::kF32, std::move(size)); }
TensorShape BF16(std::vector<int64_t> size) { return Shape(DType::kBF16, std::move(size)); }
const TensorShape kAbsent = {};

// The three products of a linear layer: of its output, of its input's and of its weights' gradient.
void AddProducts(const std::string& name, DType type, int64_t rows, int64_t in, int64_t out,
                 std::vector<Case>* cases) {
  const auto add = [&](const char* which, MatmulAttrs attrs, TensorShape a, TensorShape b,
                       TensorShape c) {
    attrs.precision = type == DType::kF16 ? MatmulPrecision::kF16 : MatmulPrecision::kBF16;
    cases->push_back({"gemm " + name + which,
                      Op::kMatmul,
                      attrs,
                      {a, b, c, kAbsent, kAbsent, kAbsent},
                      Measure::kLibrary,
                      kOfLibrary});
  };
  const TensorShape x = Shape(type, {rows, in}), y = Shape(type, {rows, out});
  const TensorShape w = Shape(type, {out, in});
  add(" forward", {.transpose_b = true}, x, w, y);
  add(" dx", {}, y, w, x);
  add(" dw", {.transpose_a = true}, y, x, F32({out, in}));
}

void AddAttention(int64_t batch, int64_t sequence, int64_t heads, int64_t kv_heads, int64_t d,
                  std::vector<Case>* cases) {
  const int64_t tokens = batch * sequence;
  const AttentionAttrs attrs = {.sequence = sequence,
                                .scale = 1 / std::sqrt(static_cast<float>(d)),
                                .precision = MatmulPrecision::kBF16};
  const TensorShape q = BF16({tokens, heads, d}), kv = BF16({tokens, kv_heads, d});
  const TensorShape lse = F32({batch, heads, sequence});
  const std::string name = " " + std::to_string(batch) + "x" + std::to_string(sequence) +
                           " heads " + std::to_string(heads) + "/" + std::to_string(kv_heads) +
                           " size " + std::to_string(d);
  const bool bounded = d == 128 && sequence == 8192;
  cases->push_back({"attention" + name,
                    Op::kAttention,
                    attrs,
                    {q, kv, kv, q, lse, TensorShape(), TensorShape()},
                    Measure::kFlops,
                    bounded ? kAttention : 0});
  cases->push_back({"attention grad" + name,
                    Op::kAttentionGrad,
                    attrs,
                    {q, kv, kv, q, lse, q, q, kv, kv, TensorShape(), TensorShape()},
                    Measure::kFlops,
                    bounded ? kAttentionGrad : 0});
}

void AddMemoryBound(int64_t rows, int64_t d, std::vector<Case>* cases) {
  const auto add = [&](const std::string& name, Op op, OpAttrs attrs,
                       std::vector<TensorShape> operands) {
    cases->push_back(
        {name, op, std::move(attrs), std::move(operands), Measure::kBandwidth, kOfCopies});
  };
  const TensorShape x = BF16({rows, d}), weight = F32({d}), per_row = F32({rows});
  const TensorShape flat = F32({rows * d});
  add("rms_norm", Op::kRmsNorm, NormAttrs{}, {x, weight, x, per_row});
  add("rms_norm grad", Op::kRmsNormGrad, NormAttrs{}, {x, x, weight, per_row, x, x, weight});
  add("layer_norm", Op::kLayerNorm, NormAttrs{}, {x, weight, weight, x, per_row, per_row});
  add("layer_norm grad", Op::kLayerNormGrad, NormAttrs{},
      {x, x, weight, per_row, per_row, x, x, weight, weight});
  add("add_residual", Op::kAddResidual, NoAttrs{}, {x, x, weight, x});
  add("gelu", Op::kGelu, ActivationAttrs{}, {x, x});
  add("swiglu", Op::kSwiglu, ActivationAttrs{Activation::kSilu}, {x, x, x});
  add("swiglu grad", Op::kSwigluGrad, ActivationAttrs{Activation::kSilu}, {x, x, x, x, x});
  add("rope", Op::kRope, RopeAttrs{.sequence = 512}, {BF16({rows, d / 128, 128}), F32({512, 128})});
  add("cast", Op::kCast, NoAttrs{}, {flat, BF16({rows * d})});
  const TensorShape scales = F32({rows * d / kActivationBlock});
  for (const Format format :
       {Format::kInt8Linear, Format::kFP8, Format::kInt4Linear, Format::kNF4}) {
    const std::string name(RowOf(format).name);
    const BlockAttrs blocks = {.format = format};
    const int64_t packed = RowOf(format).packed;
    const TensorShape codes = Shape(DType::kU8, {rows * d / packed});
    add("encode " + name, Op::kEncodeBlocks, blocks, {BF16({rows * d}), codes, scales, {}});
    add("decode " + name, Op::kDecodeBlocks, blocks, {codes, scales, BF16({rows * d})});
    add("sum " + name, Op::kSumBlocks, blocks,
        {Shape(DType::kU8, {8, rows * d / 8 / packed}), F32({8, rows * d / kActivationBlock / 8}),
         F32({rows * d / 8})});
  }
  add("squared_norm", Op::kSquaredNorm, ScaleAttrs{}, {flat, F32({1})});
  add("adamw", Op::kUpdate, UpdateAttrs{}, {flat, flat, flat, flat, F32({4}), F32({4})});
  const TensorShape matrix = F32({d, 4 * d});
  add("muon", Op::kUpdateMatrix,
      UpdateAttrs{
          .rule = OptimizerRule::kMuon, .iterations = 5, .precision = MatmulPrecision::kBF16},
      {matrix, matrix, matrix, {}, F32({4}), F32({4})});
  add("adafactor", Op::kUpdateFactored,
      UpdateAttrs{.rule = OptimizerRule::kAdafactor,
                  .beta1 = 0,
                  .epsilon = 1e-30f,
                  .clip_threshold = 1,
                  .least_scale = 1e-3f},
      {matrix, matrix, {}, {}, F32({d}), F32({4 * d}), {}, {}, F32({4}), F32({4})});
  UpdateAttrs rounded;
  rounded.rounding.parts = std::make_shared<std::vector<RoundingPart>>(
      std::vector<RoundingPart>{{.rows = 1, .columns = rows * d, .row_stride = rows * d}});
  add("update_stochastic", Op::kUpdateStochastic, rounded,
      {flat, BF16({rows * d}), flat, flat, F32({4}), F32({4}), Shape(DType::kI32, {1})});
}

}  // namespace

std::vector<Case> AllCases(bool small) {
  std::vector<Case> cases;
  const int64_t rows = small ? 64 : 8192;
  const int64_t width = small ? 4 : 1;  // what the widths are divided by
  AddProducts("gpt2-124m up", DType::kBF16, rows, 768 / width, 3072 / width, &cases);
  AddProducts("gpt2-1.5b up", DType::kBF16, rows, 1600 / width, 6400 / width, &cases);
  AddProducts("qwen2.5-1.5b up", DType::kBF16, rows, 1536 / width, 8960 / width, &cases);
  AddProducts("qwen2.5-7b q", DType::kBF16, rows, 3584 / width, 3584 / width, &cases);
  AddProducts("qwen2.5-7b up", DType::kBF16, rows, 3584 / width, 18944 / width, &cases);
  AddProducts("qwen2.5-7b up f16", DType::kF16, rows, 3584 / width, 18944 / width, &cases);
  if (small) {
    AddAttention(1, 64, 4, 4, 64, &cases);
    AddAttention(1, 64, 4, 2, 128, &cases);
  } else {
    AddAttention(16, 1024, 12, 12, 64, &cases);
    AddAttention(4, 4096, 12, 2, 128, &cases);
    AddAttention(2, 8192, 16, 16, 128, &cases);
    AddAttention(2, 8192, 28, 4, 128, &cases);
  }
  AddMemoryBound(small ? 512 : 16384, small ? 512 : 4096, &cases);
  return cases;
}

}  // namespace terrace::kernels::bench
