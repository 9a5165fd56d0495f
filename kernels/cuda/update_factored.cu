// The update of one tensor by a rule that keeps means of squares by row and by column, as
// kernels/cpu/update_factored.cc does it: sums of rows by a block each, sums of columns in blocks
// of rows, and what follows from them by one block. A step that is skipped writes scratch alone.
//
// SPDX-License-Identifier: Apache-2.0
#include <utility>
#include <variant>

#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/workspace.h"
#include "kernels/factored_workspace.h"

namespace terrace::kernels::cuda {
namespace {

constexpr int kSumThreads = 256;

// What follows from sums over the whole tensor.
struct Rates {
  float shrink;      // times the step that the moment follows
  float minus_rate;  // times the step that the weights take
  float decay;       // of weights
};

struct Tensor {
  int64_t rows, columns;
  Operand grad, param, m;
  const float* scale;
  const float* schedule;
  float epsilon, error_epsilon, beta1, one_minus_beta1;
  double* row_sums;
  double* weight_sums;
  float* of_rows;  // what gradients are multiplied by
  float* of_columns;
  float* of_error_rows;  // what moments are; null where there are no errors
  float* of_error_columns;
  Rates* rates;

  __device__ bool Skips() const { return scale[3] != 0; }
  __device__ float Gradient(int64_t row, int64_t column) const {
    return grad.Load(row, column) * scale[0];
  }
  __device__ float Direction(int64_t row, int64_t column) const {
    return Gradient(row, column) * of_rows[row] * of_columns[column];
  }
  // What the first moment is a mean of.
  __device__ float Shrunk(int64_t row, int64_t column) const {
    return Direction(row, column) * rates->shrink;
  }
  __device__ float NextMoment(float step, int64_t row, int64_t column) const {
    return fmaf(one_minus_beta1, step, beta1 * m.Load(row, column));
  }
};

// What the sums of rows and columns are of.
struct Squares {
  static constexpr bool kOfWeights = true;
  __device__ static float Of(const Tensor& t, int64_t row, int64_t column) {
    const float g = t.Gradient(row, column);
    return fmaf(g, g, t.epsilon);
  }
};
struct StepSquares {
  static constexpr bool kOfWeights = false;
  __device__ static float Of(const Tensor& t, int64_t row, int64_t column) {
    const float u = t.Direction(row, column);
    return u * u;
  }
};
struct Errors {
  static constexpr bool kOfWeights = false;
  __device__ static float Of(const Tensor& t, int64_t row, int64_t column) {
    const float u = t.Shrunk(row, column), error = u - t.NextMoment(u, row, column);
    return fmaf(error, error, t.error_epsilon);
  }
};

template <typename Term>
struct ColumnTerm {
  static constexpr int kSums = 1;
  Tensor tensor;
  __device__ void Terms(int64_t row, int64_t column, float (*terms)[kPack]) const {
#pragma unroll
    for (int i = 0; i < kPack; ++i)
      terms[0][i] = column + i < tensor.columns ? Term::Of(tensor, row, column + i) : 0.0f;
  }
};

// Into row_sums, and those of squared weights into weight_sums.
template <typename Term>
__global__ void __launch_bounds__(kSumThreads) RowSumKernel(Tensor t) {
  for (int64_t row = blockIdx.x; row < t.rows; row += gridDim.x) {
    double sum = 0, weights = 0;
    for (int64_t column = threadIdx.x; column < t.columns; column += blockDim.x) {
      sum += Term::Of(t, row, column);
      if constexpr (Term::kOfWeights) {
        const float w = t.param.Load(row, column);
        weights += w * w;
      }
    }
    sum = BlockSum(sum);
    if constexpr (Term::kOfWeights) weights = BlockSum(weights);
    if (threadIdx.x != 0) continue;
    t.row_sums[row] = sum;
    if constexpr (Term::kOfWeights) t.weight_sums[row] = weights;
  }
}

// Means that follow sums: of rows row_sums, of columns what lies where their factors will.
struct Means {
  float* rows;  // null of a vector
  float* columns;
  float* of_rows;
  float* of_columns;
  double decay_apart;  // 1 - decay; below 0: the third number of the schedule
};

__device__ inline float Follow(const Tensor& t, const Means& means, double value, float mean) {
  const double apart = means.decay_apart < 0 ? t.schedule[2] : means.decay_apart;
  return static_cast<float>(mean * (1.0 - apart) + value * apart);
}

__global__ void __launch_bounds__(kSumThreads) FollowColumnsKernel(Tensor t, Means means) {
  if (t.Skips()) return;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < t.columns;
       i += step) {
    const double value = means.of_columns[i] / static_cast<double>(t.rows);
    means.columns[i] = Follow(t, means, value, means.columns[i]);
    means.of_columns[i] = static_cast<float>(1.0 / sqrt(static_cast<double>(means.columns[i])));
  }
}

// By one block.
__global__ void __launch_bounds__(kSumThreads) FollowRowsKernel(Tensor t, Means means) {
  if (t.Skips()) return;
  double sum = 0;
  for (int64_t i = threadIdx.x; means.rows != nullptr && i < t.rows; i += blockDim.x) {
    means.rows[i] = Follow(t, means, t.row_sums[i] / static_cast<double>(t.columns), means.rows[i]);
    sum += means.rows[i];
  }
  const double mean = BlockSum(sum) / static_cast<double>(t.rows);
  for (int64_t i = threadIdx.x; i < t.rows; i += blockDim.x)
    means.of_rows[i] =
        means.rows == nullptr ? 1.0f : static_cast<float>(sqrt(mean / means.rows[i]));
}

struct RateRules {
  float lr_scale, least_scale, clip_threshold, weight_decay;
  bool rate_first;  // the first moment is one of steps with their rate
};

// By one block.
__global__ void __launch_bounds__(kSumThreads) RatesKernel(Tensor t, RateRules rules) {
  double steps = 0, weights = 0;
  for (int64_t i = threadIdx.x; i < t.rows; i += blockDim.x) {
    steps += t.row_sums[i];
    weights += t.weight_sums[i];
  }
  const double elements = static_cast<double>(t.rows) * static_cast<double>(t.columns);
  steps = sqrt(BlockSum(steps) / elements);
  weights = sqrt(BlockSum(weights) / elements);
  if (threadIdx.x != 0) return;
  double rate = static_cast<double>(rules.lr_scale) * t.schedule[0];
  const double least = rules.least_scale, clip = rules.clip_threshold;
  if (least > 0) rate *= weights > least ? weights : least;
  const double shrink = clip > 0 && steps > clip ? clip / steps : 1.0;
  t.rates->shrink = static_cast<float>(rules.rate_first ? shrink * rate : shrink);
  t.rates->minus_rate = static_cast<float>(rules.rate_first ? -1.0 : -rate);
  t.rates->decay = static_cast<float>(1.0 - rate * rules.weight_decay);
}

// Weights and moments.
__global__ void __launch_bounds__(kSumThreads) StepKernel(Tensor t) {
  if (t.Skips()) return;
  for (int64_t row = blockIdx.x; row < t.rows; row += gridDim.x) {
    for (int64_t column = threadIdx.x; column < t.columns; column += blockDim.x) {
      float step = t.Shrunk(row, column);
      if (t.m.data != nullptr) {
        step = t.NextMoment(step, row, column);
        t.m.Store(row, column, step);
      }
      if (t.of_error_rows != nullptr) step *= t.of_error_rows[row] * t.of_error_columns[column];
      const float decayed = t.param.Load(row, column) * t.rates->decay;
      t.param.Store(row, column, fmaf(t.rates->minus_rate, step, decayed));
    }
  }
}

// The states by their place among the op's operands (kernels/op.h).
enum Place { kGrad, kParam, kM, kV, kRows, kColumns, kErrorRows, kErrorColumns, kScale, kSchedule };

class FactoredUpdate {
 public:
  FactoredUpdate(const UpdateAttrs& attrs, std::span<const TensorView> operands,
                 const Context& context)
      : attrs_(attrs), operands_(operands), context_(context) {
    const int64_t rows = operands[kGrad].size[0], columns = operands[kGrad].size[1];
    const FactoredUpdateScratch scratch(rows, columns);
    std::byte* place = context.workspace + scratch.partial_bytes;
    const auto take = [&place](int64_t bytes) { return std::exchange(place, place + bytes); };
    const auto floats = [&](int64_t bytes) { return reinterpret_cast<float*>(take(bytes)); };
    tensor_ = {.rows = rows,
               .columns = columns,
               .grad = OperandOf(operands[kGrad]),
               .param = OperandOf(operands[kParam]),
               .m = OperandOf(operands[kM]),
               .scale = operands[kScale].as<const float>(),
               .schedule = operands[kSchedule].as<const float>(),
               .epsilon = attrs.epsilon,
               .error_epsilon = attrs.error_epsilon,
               .beta1 = attrs.beta1,
               .one_minus_beta1 = static_cast<float>(1.0 - attrs.beta1),
               .row_sums = reinterpret_cast<double*>(take(scratch.sum_bytes)),
               .weight_sums = reinterpret_cast<double*>(take(scratch.sum_bytes)),
               .of_rows = floats(scratch.row_bytes),
               .of_columns = floats(scratch.column_bytes),
               .of_error_rows = floats(scratch.row_bytes),
               .of_error_columns = floats(scratch.column_bytes),
               .rates = reinterpret_cast<Rates*>(take(kScratchAlignment))};
    shape_ = RowShape(rows, columns);
  }

  Status Run() {
    const bool vector = !operands_[kV].absent(), came = attrs_.rule == OptimizerRule::kCame;
    const bool errors = !operands_[kErrorRows].absent();
    Status status = Average<Squares>({.rows = vector ? nullptr : Floats(kRows),
                                      .columns = Floats(vector ? kV : kColumns),
                                      .of_rows = tensor_.of_rows,
                                      .of_columns = tensor_.of_columns,
                                      .decay_apart = came ? OneMinusDecay(attrs_.beta2) : -1.0});
    if (status.ok()) status = SetRates();
    if (status.ok() && errors) {
      status = Average<Errors>({.rows = Floats(kErrorRows),
                                .columns = Floats(kErrorColumns),
                                .of_rows = tensor_.of_error_rows,
                                .of_columns = tensor_.of_error_columns,
                                .decay_apart = OneMinusDecay(attrs_.beta3)});
    }
    if (!status.ok()) return status;
    if (!errors) tensor_.of_error_rows = nullptr;
    return Launch("update_factored", StepKernel, shape_, context_, tensor_);
  }

 private:
  float* Floats(int operand) const { return operands_[operand].as<float>(); }

  template <typename Term>
  Status Average(const Means& means) const {
    Status status = Launch("update_factored", RowSumKernel<Term>, shape_, context_, tensor_);
    const ColumnSums sums = {
        .rows = tensor_.rows, .columns = tensor_.columns, .out = {means.of_columns}};
    if (status.ok())
      status = LaunchColumnSums("update_factored", sums, ColumnTerm<Term>{tensor_}, context_);
    // A thread a column.
    const LaunchShape columns = ElementShape(1, tensor_.columns * kPack);
    if (status.ok())
      status = Launch("update_factored", FollowColumnsKernel, columns, context_, tensor_, means);
    if (!status.ok()) return status;
    return Launch("update_factored", FollowRowsKernel, kOneBlock, context_, tensor_, means);
  }

  Status SetRates() const {
    Status status = Launch("update_factored", RowSumKernel<StepSquares>, shape_, context_, tensor_);
    if (!status.ok()) return status;
    const RateRules rules = {.lr_scale = attrs_.lr_scale,
                             .least_scale = attrs_.least_scale,
                             .clip_threshold = attrs_.clip_threshold,
                             .weight_decay = attrs_.weight_decay,
                             .rate_first = attrs_.rule == OptimizerRule::kAdafactor};
    return Launch("update_factored", RatesKernel, kOneBlock, context_, tensor_, rules);
  }

  static constexpr LaunchShape kOneBlock = {.threads = kSumThreads};

  const UpdateAttrs& attrs_;
  const std::span<const TensorView> operands_;
  const Context& context_;
  Tensor tensor_ = {};
  LaunchShape shape_;
};

}  // namespace

Status UpdateFactored(const OpAttrs& attrs, std::span<const TensorView> operands,
                      const Context& context) {
  return FactoredUpdate(std::get<UpdateAttrs>(attrs), operands, context).Run();
}

}  // namespace terrace::kernels::cuda
