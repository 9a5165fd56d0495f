// The update of one matrix by Muon, as kernels/cpu/update_matrix.cc does it: its momentum, Newton's
// and Schulz's iteration with the library's products, and the weights.
//
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <utility>
#include <variant>

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/workspace.h"

namespace terrace::kernels::cuda {
namespace {

// Gradient, moment, direction. Of a step that is skipped nobody reads the direction.
struct DirectionOp {
  static constexpr int kIn = 0b011, kOut = 0b110;
  const float* scale;
  float rest;  // 1 - momentum
  __device__ void Apply(float* e, int64_t) const {
    if (scale[3] == 0) {
      const float g = e[0] * scale[0];
      e[1] = fmaf(rest, g - e[1], e[1]);
      e[2] = fmaf(rest, g - e[1], e[1]);
    } else {
      e[2] = 0;
    }
  }
};

// x /= max(|x|, epsilon).
struct NormaliseOp {
  static constexpr int kIn = 0b1, kOut = 0b1;
  const float* squares;
  float epsilon;
  __device__ void Apply(float* e, int64_t) const {
    const float norm = sqrtf(*squares);
    e[0] *= 1 / (norm > epsilon ? norm : epsilon);
  }
};

// y = of_x x + of_y y.
struct CombineOp {
  static constexpr int kIn = 0b11, kOut = 0b10;
  float of_x, of_y;
  __device__ void Apply(float* e, int64_t) const { e[1] = fmaf(of_x, e[0], of_y * e[1]); }
};

// The orthogonal direction and the weights.
struct StepOp {
  static constexpr int kIn = 0b11, kOut = 0b10;
  const float* scale;
  const float* schedule;
  float lr_scale, weight_decay, step_scale;
  __device__ void Apply(float* e, int64_t) const {
    if (scale[3] != 0) return;
    const double learning_rate = static_cast<double>(lr_scale) * schedule[0];
    const float decay = static_cast<float>(1.0 - learning_rate * weight_decay);
    const float rate = static_cast<float>(-learning_rate) * step_scale;
    e[1] = fmaf(rate, e[0], e[1] * decay);
  }
};

TensorView DenseView(void* data, int64_t rows, int64_t columns) {
  TensorView view;
  view.dtype = DType::kF32;
  view.dims = 2;
  view.size = {rows, columns};
  view.row_stride = columns;
  view.data = data;
  return view;
}

class NewtonSchulz {
 public:
  NewtonSchulz(int64_t rows, int64_t columns, const UpdateAttrs& attrs, const Context& context)
      : attrs_(attrs), scratch_(rows, columns, attrs.precision), context_(context) {
    std::byte* place = context.workspace;
    work_ = std::exchange(place, place + scratch_.work_bytes);
    squares_ = reinterpret_cast<float*>(std::exchange(place, place + kScratchAlignment));
    const auto take = [&place](int64_t bytes) { return std::exchange(place, place + bytes); };
    x_ = DenseView(take(scratch_.matrix_bytes), rows, columns);
    y_ = DenseView(take(scratch_.matrix_bytes), rows, columns);
    gram_ = DenseView(take(scratch_.square_bytes), scratch_.shape.side(), scratch_.shape.side());
    polynomial_ =
        DenseView(take(scratch_.square_bytes), scratch_.shape.side(), scratch_.shape.side());
  }

  const TensorView& x() const { return x_; }

  Status Run() {
    if (Status status = Normalise(); !status.ok()) return status;
    for (int64_t i = 0; i < attrs_.iterations; ++i) {
      if (Status status = Iterate(); !status.ok()) return status;
    }
    return {};
  }

 private:
  Status Normalise() const {
    TensorView out;
    out.dtype = DType::kF32;
    out.dims = 1;
    out.size = {1};
    out.row_stride = 1;
    out.data = squares_;
    Context work = context_;
    work.workspace = work_;
    Status status = SquaredNorm(ScaleAttrs{}, std::array{x_, out}, work);
    if (!status.ok()) return status;
    return LaunchElements("update_matrix", std::array{x_}, NormaliseOp{squares_, attrs_.epsilon},
                          context_);
  }

  Status Iterate() {
    const auto [a, b, c] = kNewtonSchulz;
    const bool left = scratch_.shape.from_left();
    const int64_t side = scratch_.shape.side();
    Status status = Multiply(x_, x_, gram_, scratch_.shape.longer(), !left, left);
    if (status.ok()) status = Multiply(gram_, gram_, polynomial_, side, false, false);
    if (status.ok()) status = Combine(gram_, b, polynomial_, c);
    if (status.ok()) {
      status = left ? Multiply(polynomial_, x_, y_, side, false, false)
                    : Multiply(x_, polynomial_, y_, side, false, false);
    }
    if (status.ok()) status = Combine(x_, a, y_, 1);
    std::swap(x_, y_);
    return status;
  }

  Status Combine(const TensorView& x, float of_x, const TensorView& y, float of_y) const {
    return LaunchElements("update_matrix", std::array{x, y}, CombineOp{of_x, of_y}, context_);
  }

  // to = op(a) op(b).
  Status Multiply(const TensorView& a, const TensorView& b, const TensorView& to, int64_t k,
                  bool transpose_a, bool transpose_b) const {
    const auto matrix = [](const TensorView& view) {
      return Matrix{view.data, view.dtype, view.row_stride};
    };
    return RunGemm({.m = to.size[0],
                    .n = to.size[1],
                    .k = k,
                    .transpose_a = transpose_a,
                    .transpose_b = transpose_b,
                    .precision = attrs_.precision,
                    .a = matrix(a),
                    .b = matrix(b),
                    .c = matrix(to),
                    .residual = {},
                    .aux = {}},
                   work_, context_);
  }

  const UpdateAttrs& attrs_;
  const MatrixUpdateScratch scratch_;
  const Context& context_;
  std::byte* work_ = nullptr;
  float* squares_ = nullptr;
  TensorView x_, y_, gram_, polynomial_;
};

}  // namespace

Status UpdateMatrix(const OpAttrs& attrs, std::span<const TensorView> operands,
                    const Context& context) {
  const auto& update = std::get<UpdateAttrs>(attrs);
  const float* scale = operands[4].as<const float>();
  NewtonSchulz iteration(operands[0].size[0], operands[0].size[1], update, context);
  const DirectionOp direction{scale, static_cast<float>(1.0 - update.beta1)};
  Status status = LaunchElements(
      "update_matrix", std::array{operands[0], operands[2], iteration.x()}, direction, context);
  if (status.ok()) status = iteration.Run();
  if (!status.ok()) return status;
  const StepOp step{scale, operands[5].as<const float>(), update.lr_scale, update.weight_decay,
                    update.step_scale};
  return LaunchElements("update_matrix", std::array{iteration.x(), operands[1]}, step, context);
}

}  // namespace terrace::kernels::cuda
