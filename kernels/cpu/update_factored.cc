// The update of one tensor by a rule that keeps means of squares by row and by column
// (OptimizerRule::kAdafactor and kCame). No step of the size of the tensor is stored: each sweep
// makes it again from gradients, means and moment. A vector is one row whose `v` is what means of
// columns are for a matrix.
//
// Sums of rows are in double between pieces of a row, sums of columns in blocks of rows that the
// shape fixes.
//
// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/update_factored.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h:
#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <variant>

#include "hwy/highway.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/partial_sums.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/update_factored.h"
#include "kernels/factored_workspace.h"
#include "kernels/row_blocks.h"

HWY_BEFORE_NAMESPACE();
namespace terrace::kernels::cpu::HWY_NAMESPACE {
namespace {

constexpr int64_t kPiece = 4096;  // elements of a row that are summed in f32

// The sum over a row of value(i, access), i counting from its first element.
template <typename Value>
double SumRow(int64_t columns, const Value& value) {
  double sum = 0;
  for (int64_t first = 0; first < columns; first += kPiece) {
    sum += SumVectors(std::min(kPiece, columns - first),
                      [&](int64_t i, auto access) HWY_ATTR { return value(first + i, access); });
  }
  return sum;
}

// The step before the first moment: g times the factors of its row and column.
struct Direction {
  V of_row;
  const float* of_columns;

  template <typename Access>
  HWY_INLINE V Of(V g, int64_t i, const Access& access) const {
    return hn::Mul(hn::Mul(g, of_row), access.Load(of_columns + i));
  }
};

template <typename Grad, typename Moment>
class Row {
 public:
  Row(const FactoredCall& call, int64_t row)
      : call_(call),
        row_(row),
        columns_(call.columns),
        grad_(static_cast<const Grad*>(call.grad) + row * columns_),
        m_(call.m == nullptr ? nullptr : static_cast<Moment*>(call.m) + row * columns_),
        param_(call.param + row * columns_),
        scale_(hn::Set(D(), call.grad_scale)) {}

  // Adds squares to sums of columns, and writes the row's.
  void Squares(float* column_sums) const {
    const V epsilon = hn::Set(D(), call_.epsilon);
    call_.row_sums[row_] = SumRow(columns_, [&](int64_t i, auto access) HWY_ATTR {
      const V g = hn::Mul(access.Load(grad_ + i), scale_);
      const V square = hn::MulAdd(g, g, epsilon);
      access.Store(hn::Add(access.Load(column_sums + i), square), column_sums + i);
      return square;
    });
    call_.weight_sums[row_] = SumRow(columns_, [&](int64_t i, auto access) HWY_ATTR {
      const V w = access.Load(param_ + i);
      return hn::Mul(w, w);
    });
  }

  void StepSquares() const {
    const Direction direction = DirectionOf();
    call_.row_sums[row_] = SumRow(columns_, [&](int64_t i, auto access) HWY_ATTR {
      const V u = direction.Of(Gradient(i, access), i, access);
      return hn::Mul(u, u);
    });
  }

  // Of kCame: squares of what the step misses its moment by.
  void Errors(float* column_sums) const {
    const Direction direction = DirectionOf();
    const V epsilon = hn::Set(D(), call_.error_epsilon);
    call_.row_sums[row_] = SumRow(columns_, [&](int64_t i, auto access) HWY_ATTR {
      const V u = Shrunk(direction, i, access);
      const V error = hn::Sub(u, NextMoment(u, i, access));
      const V square = hn::MulAdd(error, error, epsilon);
      access.Store(hn::Add(access.Load(column_sums + i), square), column_sums + i);
      return square;
    });
  }

  void Step() const {
    const Direction direction = DirectionOf();
    const V decay = hn::Set(D(), call_.decay), minus_rate = hn::Set(D(), call_.minus_rate);
    const bool errors = call_.of_error_columns != nullptr;
    const V of_error_row = hn::Set(D(), errors ? call_.of_error_rows[row_] : 1.0f);
    ForVectors(columns_, [&](int64_t i, auto access) HWY_ATTR {
      V step = Shrunk(direction, i, access);
      if (m_ != nullptr) {
        step = NextMoment(step, i, access);
        access.Store(step, m_ + i);
      }
      if (errors)
        step = hn::Mul(hn::Mul(step, of_error_row), access.Load(call_.of_error_columns + i));
      const V decayed = hn::Mul(access.Load(param_ + i), decay);
      access.Store(hn::MulAdd(minus_rate, step, decayed), param_ + i);
    });
  }

 private:
  Direction DirectionOf() const { return {hn::Set(D(), call_.of_rows[row_]), call_.of_columns}; }

  template <typename Access>
  HWY_INLINE V Gradient(int64_t i, const Access& access) const {
    return hn::Mul(access.Load(grad_ + i), scale_);
  }

  // What the first moment is a mean of.
  template <typename Access>
  HWY_INLINE V Shrunk(const Direction& direction, int64_t i, const Access& access) const {
    return hn::Mul(direction.Of(Gradient(i, access), i, access), hn::Set(D(), call_.shrink));
  }

  template <typename Access>
  HWY_INLINE V NextMoment(V step, int64_t i, const Access& access) const {
    return hn::MulAdd(hn::Set(D(), call_.one_minus_beta1), step,
                      hn::Mul(hn::Set(D(), call_.beta1), access.Load(m_ + i)));
  }

  const FactoredCall& call_;
  const int64_t row_, columns_;
  const Grad* const grad_;
  Moment* const m_;
  float* const param_;
  const V scale_;
};

template <typename Grad, typename Moment>
void TypedSweep(const FactoredCall& call, FactoredSweep sweep, int64_t begin, int64_t end,
                float* column_sums) {
  if (column_sums != nullptr) std::fill_n(column_sums, call.columns, 0.0f);
  for (int64_t i = begin; i < end; ++i) {
    const Row<Grad, Moment> row(call, i);
    switch (sweep) {
      case FactoredSweep::kSquares:
        row.Squares(column_sums);
        break;
      case FactoredSweep::kStepSquares:
        row.StepSquares();
        break;
      case FactoredSweep::kErrors:
        row.Errors(column_sums);
        break;
      case FactoredSweep::kStep:
        row.Step();
        break;
    }
  }
}

// Rows [begin, end). `column_sums`: of these rows alone; null where the sweep sums no columns.
void Sweep(const FactoredCall& call, FactoredSweep sweep, int64_t begin, int64_t end,
           float* column_sums) {
  ByType(call.grad_type, [&](auto* type) HWY_ATTR {
    using Grad = std::remove_pointer_t<decltype(type)>;
    if (call.m_type == DType::kBF16)
      return TypedSweep<Grad, BF16>(call, sweep, begin, end, column_sums);
    TypedSweep<Grad, float>(call, sweep, begin, end, column_sums);
  });
}

}  // namespace
}  // namespace terrace::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace terrace::kernels::cpu {
namespace {

HWY_EXPORT(Sweep);

// kGrad, kParam and the states by their place among the op's operands (kernels/op.h).
enum Place { kGrad, kParam, kM, kV, kRows, kColumns, kErrorRows, kErrorColumns, kScale, kSchedule };

class FactoredUpdate {
 public:
  FactoredUpdate(const UpdateAttrs& attrs, std::span<const TensorView> operands,
                 const Context& context)
      : attrs_(attrs),
        operands_(operands),
        rows_(operands[kGrad].size[0]),
        columns_(operands[kGrad].size[1]),
        threads_(context.threads),
        blocks_(SplitRows(rows_)) {
    const FactoredScratch scratch(rows_, columns_);
    std::byte* place = context.workspace;
    const auto take = [&place]<typename T>(int64_t bytes, T*) {
      return reinterpret_cast<T*>(std::exchange(place, place + bytes));
    };
    call_.row_sums = take(scratch.sum_bytes, static_cast<double*>(nullptr));
    call_.weight_sums = take(scratch.sum_bytes, static_cast<double*>(nullptr));
    const auto floats = [&](int64_t bytes) { return take(bytes, static_cast<float*>(nullptr)); };
    partial_ = floats(scratch.partial_bytes);
    call_.of_rows = floats(scratch.row_bytes);
    call_.of_columns = floats(scratch.column_bytes);
    error_rows_ = floats(scratch.row_bytes);
    error_columns_ = floats(scratch.column_bytes);
    FillCall();
  }

  void Run() {
    const bool vector = !operands_[kV].absent();
    SweepRows(FactoredSweep::kSquares);
    const Means squares = {.rows = vector ? nullptr : Floats(kRows),
                           .columns = Floats(vector ? kV : kColumns),
                           .one_minus_decay = OneMinusBeta2()};
    Average(squares, call_.of_rows, call_.of_columns);
    const double weights = RootMeanSquare(call_.weight_sums);
    SweepRows(FactoredSweep::kStepSquares);
    SetRates(RootMeanSquare(call_.row_sums), weights);
    if (!operands_[kErrorRows].absent()) {
      SweepRows(FactoredSweep::kErrors);
      const Means errors = {.rows = Floats(kErrorRows),
                            .columns = Floats(kErrorColumns),
                            .one_minus_decay = OneMinusDecay(attrs_.beta3)};
      Average(errors, error_rows_, error_columns_);
      call_.of_error_rows = error_rows_;
      call_.of_error_columns = error_columns_;
    }
    SweepRows(FactoredSweep::kStep);
  }

 private:
  struct Means {
    float* rows = nullptr;  // null of a vector
    float* columns = nullptr;
    double one_minus_decay = 0;
  };

  float* Floats(int operand) const { return operands_[operand].as<float>(); }
  float Schedule(int i) const { return operands_[kSchedule].as<const float>()[i]; }
  double OneMinusBeta2() const {
    return attrs_.rule == OptimizerRule::kCame ? OneMinusDecay(attrs_.beta2) : Schedule(2);
  }

  void FillCall() {
    call_.columns = columns_;
    call_.grad = operands_[kGrad].data;
    call_.grad_type = operands_[kGrad].dtype;
    call_.param = Floats(kParam);
    call_.m = operands_[kM].absent() ? nullptr : operands_[kM].data;
    call_.m_type = operands_[kM].absent() ? DType::kF32 : operands_[kM].dtype;
    call_.grad_scale = operands_[kScale].as<const float>()[0];
    call_.epsilon = attrs_.epsilon;
    call_.error_epsilon = attrs_.error_epsilon;
    call_.beta1 = attrs_.beta1;
    call_.one_minus_beta1 = static_cast<float>(1.0 - attrs_.beta1);
  }

  void SweepRows(FactoredSweep sweep) const {
    const bool sums_columns = sweep == FactoredSweep::kSquares || sweep == FactoredSweep::kErrors;
    const int64_t stride = PartialStride(columns_);
    ParallelFor(blocks_.count, blocks_.rows_per_block * columns_, threads_,
                [&](int64_t begin, int64_t end) {
                  for (int64_t b = begin; b < end; ++b) {
                    const int64_t first = b * blocks_.rows_per_block;
                    const int64_t last = std::min(first + blocks_.rows_per_block, rows_);
                    HWY_DYNAMIC_DISPATCH(Sweep)
                    (call_, sweep, first, last, sums_columns ? partial_ + b * stride : nullptr);
                  }
                });
  }

  // The means follow what the sweep before has summed; what is multiplied by is 1 / sqrt(row / mean
  // of rows) and 1 / sqrt(column).
  void Average(const Means& means, float* of_rows, float* of_columns) const {
    AddPartialSums({partial_, blocks_.count, PartialStride(columns_), columns_},
                   /*accumulate=*/false, threads_, of_columns);
    for (int64_t i = 0; i < columns_; ++i) {
      Follow(of_columns[i] / static_cast<double>(rows_), means.one_minus_decay, &means.columns[i]);
      of_columns[i] = static_cast<float>(1.0 / std::sqrt(double{means.columns[i]}));
    }
    if (means.rows == nullptr) {
      std::fill_n(of_rows, rows_, 1.0f);
      return;
    }
    double sum = 0;
    for (int64_t i = 0; i < rows_; ++i) {
      Follow(call_.row_sums[i] / static_cast<double>(columns_), means.one_minus_decay,
             &means.rows[i]);
      sum += means.rows[i];
    }
    const double mean = sum / static_cast<double>(rows_);
    for (int64_t i = 0; i < rows_; ++i)
      of_rows[i] = static_cast<float>(std::sqrt(mean / means.rows[i]));
  }

  static void Follow(double value, double one_minus_decay, float* mean) {
    *mean = static_cast<float>(*mean * (1.0 - one_minus_decay) + value * one_minus_decay);
  }

  double RootMeanSquare(const double* row_sums) const {
    double sum = 0;
    for (int64_t i = 0; i < rows_; ++i) sum += row_sums[i];
    return std::sqrt(sum / static_cast<double>(rows_ * columns_));
  }

  void SetRates(double step, double weights) {
    double rate = static_cast<double>(attrs_.lr_scale) * Schedule(0);
    if (attrs_.least_scale > 0) rate *= std::max<double>(attrs_.least_scale, weights);
    const double clip = attrs_.clip_threshold;
    const double shrink = clip > 0 && step > clip ? clip / step : 1.0;
    // The first moment of kAdafactor is one of steps with their rate.
    const bool rate_first = attrs_.rule == OptimizerRule::kAdafactor;
    call_.shrink = static_cast<float>(rate_first ? shrink * rate : shrink);
    call_.minus_rate = static_cast<float>(rate_first ? -1.0 : -rate);
    call_.decay = static_cast<float>(1.0 - rate * attrs_.weight_decay);
  }

  const UpdateAttrs& attrs_;
  const std::span<const TensorView> operands_;
  const int64_t rows_, columns_;
  const int threads_;
  const RowBlocks blocks_;
  FactoredCall call_;
  float* partial_ = nullptr;
  float* error_rows_ = nullptr;
  float* error_columns_ = nullptr;
};

}  // namespace

Status UpdateFactored(const OpAttrs& attrs, std::span<const TensorView> operands,
                      const Context& context) {
  const bool skips = operands[kScale].as<const float>()[3] != 0;
  if (!skips) FactoredUpdate(std::get<UpdateAttrs>(attrs), operands, context).Run();
  return {};
}

}  // namespace terrace::kernels::cpu
#endif  // HWY_ONCE
