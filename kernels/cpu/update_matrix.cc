// The update of one matrix by Muon: its momentum in one sweep, then Newton's and Schulz's iteration
// with the products that kMatmul has, then the weights in another sweep.
//
// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/update_matrix.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <variant>

#include "hwy/highway.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/update.h"
#include "kernels/newton_schulz.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

// Operands grad, m and the direction u: m += (1 - b1) (g - m); u = b1 m + (1 - b1) g.
template <typename Grad, typename Moment>
void TypedDirection(const Tile& tile, const UpdateStep& step) {
  const D d;
  const Grad* grad = tile.as<const Grad>(0);
  Moment* m = tile.as<Moment>(1);
  float* u = tile.as<float>(2);
  const V scale = hn::Set(d, step.grad_scale), rest = hn::Set(d, step.one_minus_beta1);
  ForVectors(tile.count, [=](int64_t i, auto access) HWY_ATTR {
    const V g = hn::Mul(access.Load(grad + i), scale);
    const V old = access.Load(m + i);
    const V next = hn::MulAdd(rest, hn::Sub(g, old), old);
    access.Store(next, m + i);
    access.Store(hn::MulAdd(rest, hn::Sub(g, next), next), u + i);
  });
}

void DirectionTile(const Tile& tile, const UpdateStep& step) {
  ByType(tile.dtype[0], [&](auto* type) HWY_ATTR {
    using Grad = std::remove_pointer_t<decltype(type)>;
    if (tile.dtype[1] == DType::kBF16) return TypedDirection<Grad, BF16>(tile, step);
    TypedDirection<Grad, float>(tile, step);
  });
}

// Operands x and y: y = factor x.
void TimesTile(const Tile& tile, float factor) {
  const V factors = hn::Set(D(), factor);
  const float* x = tile.as<const float>(0);
  float* y = tile.as<float>(1);
  ForVectors(tile.count, [=](int64_t i, auto access) HWY_ATTR {
    access.Store(hn::Mul(access.Load(x + i), factors), y + i);
  });
}

// Operands x and param: param = decay param - rate x.
void StepTile(const Tile& tile, float decay, float minus_rate) {
  const D d;
  const V decays = hn::Set(d, decay), rates = hn::Set(d, minus_rate);
  const float* x = tile.as<const float>(0);
  float* param = tile.as<float>(1);
  ForVectors(tile.count, [=](int64_t i, auto access) HWY_ATTR {
    const V decayed = hn::Mul(access.Load(param + i), decays);
    access.Store(hn::MulAdd(rates, access.Load(x + i), decayed), param + i);
  });
}

}  // namespace
}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels::cpu {
namespace {

HWY_EXPORT(DirectionTile);
HWY_EXPORT(TimesTile);
HWY_EXPORT(StepTile);

TensorView DenseView(void* data, int64_t rows, int64_t columns) {
  TensorView view;
  view.dtype = DType::kF32;
  view.dims = 2;
  view.size = {rows, columns};
  view.row_stride = columns;
  view.data = data;
  return view;
}

void Times(const TensorView& x, float factor, const TensorView& y, int threads) {
  ForEachTile(std::array{x, y}, threads, [&](const Tile& tile) {
    HWY_DYNAMIC_DISPATCH(TimesTile)(tile, factor);
  });
}

// Newton's and Schulz's iteration in a workspace.
class NewtonSchulz {
 public:
  NewtonSchulz(const NewtonSchulzShape& shape, const UpdateAttrs& attrs, const Context& context)
      : shape_(shape), attrs_(attrs), scratch_(shape, attrs.precision, context.threads) {
    std::byte* place = context.workspace;
    const auto take = [&place](int64_t bytes) { return std::exchange(place, place + bytes); };
    x_ = DenseView(take(scratch_.matrix_bytes), shape.rows, shape.columns);
    y_ = DenseView(take(scratch_.matrix_bytes), shape.rows, shape.columns);
    gram_ = DenseView(take(scratch_.square_bytes), shape.side(), shape.side());
    polynomial_ = DenseView(take(scratch_.square_bytes), shape.side(), shape.side());
    work_ = {context.threads, place, scratch_.work_bytes};
  }

  // The iteration turns this, the direction at first, into the orthogonal matrix near it.
  const TensorView& x() const { return x_; }

  Status Run() {
    if (Status status = Normalise(); !status.ok()) return status;
    for (int64_t i = 0; i < attrs_.iterations; ++i) {
      if (Status status = Iterate(); !status.ok()) return status;
    }
    return {};
  }

 private:
  // x /= max(|x|, epsilon).
  Status Normalise() {
    float squares = 0;
    TensorView out;
    out.dims = 1;
    out.size = {1};
    out.row_stride = 1;
    out.data = &squares;
    if (Status status = SquaredNorm(ScaleAttrs{}, std::array{x_, out}, work_); !status.ok())
      return status;
    Times(x_, 1 / std::max(std::sqrt(squares), attrs_.epsilon), x_, work_.threads);
    return {};
  }

  Status Iterate() {
    const auto [a, b, c] = kNewtonSchulz;
    const bool left = shape_.from_left();
    Status status = Multiply(x_, x_, gram_, shape_.longer(), !left, left, 1, /*adds=*/false);
    if (!status.ok()) return status;
    Times(gram_, b, polynomial_, work_.threads);
    status = Multiply(gram_, gram_, polynomial_, shape_.side(), false, false, c, /*adds=*/true);
    if (!status.ok()) return status;
    Times(x_, a, y_, work_.threads);
    status = left ? Multiply(polynomial_, x_, y_, shape_.side(), false, false, 1, /*adds=*/true)
                  : Multiply(x_, polynomial_, y_, shape_.side(), false, false, 1, /*adds=*/true);
    std::swap(x_, y_);
    return status;
  }

  // to = (+=) scale op(a) op(b).
  Status Multiply(const TensorView& a, const TensorView& b, const TensorView& to, int64_t k,
                  bool transpose_a, bool transpose_b, float scale, bool adds) const {
    const auto matrix = [](const TensorView& view) {
      return Matrix{.data = view.data, .dtype = view.dtype, .row_stride = view.row_stride};
    };
    return RunGemm({.m = to.size[0],
                    .n = to.size[1],
                    .k = k,
                    .transpose_a = transpose_a,
                    .transpose_b = transpose_b,
                    .accumulate = adds,
                    .precision = attrs_.precision,
                    .scale = scale,
                    .a = matrix(a),
                    .b = matrix(b),
                    .c = matrix(to),
                    .residual = {},
                    .aux = {}},
                   work_);
  }

  const NewtonSchulzShape shape_;
  const UpdateAttrs& attrs_;
  const NewtonSchulzScratch scratch_;
  TensorView x_, y_, gram_, polynomial_;
  Context work_;
};

}  // namespace

Status UpdateMatrix(const OpAttrs& attrs, std::span<const TensorView> operands,
                    const Context& context) {
  if (SkipsStep(operands)) return {};
  const auto& update = std::get<UpdateAttrs>(attrs);
  const UpdateStep step = StepOf(update, operands);
  NewtonSchulz iteration({operands[0].size[0], operands[0].size[1]}, update, context);
  ForEachTile(std::array{operands[0], operands[2], iteration.x()}, context.threads,
              [&](const Tile& tile) {
                HWY_DYNAMIC_DISPATCH(DirectionTile)
                (tile, step);
              });
  if (Status status = iteration.Run(); !status.ok()) return status;
  const float minus_rate = step.minus_learning_rate * update.step_scale;
  ForEachTile(std::array{iteration.x(), operands[1]}, context.threads, [&](const Tile& tile) {
    HWY_DYNAMIC_DISPATCH(StepTile)(tile, step.decay, minus_rate);
  });
  return {};
}

}  // namespace terrace::kernels::cpu
#endif  // HWY_ONCE
