// Weights in bf16 that a backend updates, and what they must become: what its own AdamW makes of
// the same weights in f32, rounded one element at a time as kernels/rounding.h says.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/rounding.h"

namespace terrace::kernels {

using RoundingParts = std::vector<RoundingPart>;

// Tensors in an operand that begins at element `first` of theirs: whole rows of one, columns of
// another that share their memory's rows with columns of the same further on, padding between.
inline RoundingParts PartsFor(int64_t first) {
  return {{.begin = 8 - first,
           .rows = 1,
           .columns = 1003,
           .row_stride = 1003,
           .first = 24,
           .key = RoundingKey(1, 2)},
          {.begin = 1024 - first,
           .rows = 137,
           .columns = 40,
           .row_stride = 56,
           .first = 7,
           .tensor_stride = 129,
           .key = RoundingKey(1, 3)},
          {.begin = 1064 - first,
           .rows = 137,
           .columns = 13,
           .row_stride = 56,
           .first = 47,
           .tensor_stride = 129,
           .key = RoundingKey(1, 3)},
          {.begin = 9000 - first,
           .rows = 200,
           .columns = 64,
           .row_stride = 64,
           .first = int64_t{1} << 36,
           .tensor_stride = 640,
           .key = RoundingKey(9, 4)}};
}

// The bits of each position, by looking each of them up.
inline std::vector<uint32_t> BitsOf(const RoundingParts& parts, int32_t step, int64_t elements) {
  std::vector<uint32_t> bits(elements);
  for (const RoundingPart& part : parts) {
    for (int64_t r = 0; r < part.rows; ++r) {
      for (int64_t c = 0; c < part.columns; ++c) {
        const int64_t at = part.begin + r * part.row_stride + c;
        if (at < 0 || at >= elements) continue;
        bits[at] = RoundingBits(part.key, static_cast<uint32_t>(step),
                                part.first + r * part.tensor_stride + c);
      }
    }
  }
  return bits;
}

struct UpdatedWeights {
  using Backend =
      std::function<Status(Op op, const OpAttrs& attrs, const std::vector<TensorView>& operands)>;

  UpdatedWeights(int64_t count, RoundingParts parts)
      : grad(count), param(count), m(count), v(count) {
    for (int64_t i = 0; i < count; ++i) {
      const auto x = static_cast<float>(i);
      grad[i] = std::sin(x);
      param[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(std::cos(0.7f * x)) >> 16);
      m[i] = 0.1f * std::cos(x);
      v[i] = 0.01f + std::abs(m[i]);
    }
    SetParts(std::move(parts));
  }

  void SetParts(RoundingParts parts) {
    attrs.rounding.parts = std::make_shared<RoundingParts>(std::move(parts));
  }

  void Step(const Backend& backend, int64_t first, int64_t count) {
    const Status status =
        backend(Op::kUpdateStochastic, attrs,
                {View(DType::kF32, grad.data() + first, count),
                 View(DType::kBF16, param.data() + first, count),
                 View(DType::kF32, m.data() + first, count),
                 View(DType::kF32, v.data() + first, count), View(DType::kF32, scale.data(), 4),
                 View(DType::kF32, schedule.data(), 4), View(DType::kI32, &step, 1)});
    ASSERT_TRUE(status.ok()) << status.message;
  }

  // A step of all, and what it must have done.
  void ExpectStepByTheRules(const Backend& backend) {
    const auto count = static_cast<int64_t>(param.size());
    std::vector<float> exact(count), exact_m = m, exact_v = v;
    for (int64_t i = 0; i < count; ++i) exact[i] = std::bit_cast<float>(uint32_t{param[i]} << 16);
    UpdateAttrs plain = attrs;
    plain.rounding = {};
    const Status status =
        backend(Op::kUpdate, plain,
                {View(DType::kF32, grad.data(), count), View(DType::kF32, exact.data(), count),
                 View(DType::kF32, exact_m.data(), count), View(DType::kF32, exact_v.data(), count),
                 View(DType::kF32, scale.data(), 4), View(DType::kF32, schedule.data(), 4)});
    ASSERT_TRUE(status.ok()) << status.message;
    const std::vector<uint32_t> bits = BitsOf(*attrs.rounding.parts, step, count);
    Step(backend, 0, count);
    for (int64_t i = 0; i < count; ++i) {
      const auto want = std::bit_cast<uint32_t>(RoundStochastically(exact[i], bits[i]));
      ASSERT_EQ(uint32_t{param[i]} << 16, want) << "element " << i;
    }
    EXPECT_EQ(m, exact_m);
    EXPECT_EQ(v, exact_v);
  }

  std::vector<float> grad;
  std::vector<uint16_t> param;
  std::vector<float> m, v;
  std::vector<float> scale = {0.5f, 0, 0, 0}, schedule = {0.01f, 0.2f, 0.1f, 0};
  int32_t step = 41;
  UpdateAttrs attrs = {.beta1 = 0.9f, .beta2 = 0.95f, .weight_decay = 0.1f};

 private:
  static TensorView View(DType dtype, void* data, int64_t count) {
    TensorView view;
    view.dtype = dtype;
    view.dims = 1;
    view.size[0] = count;
    view.row_stride = 1;
    view.data = data;
    return view;
  }
};

}  // namespace terrace::kernels
