// What the backward pass computes again must have the bits of what the forward pass threw away.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "tests/unit/kernels/cpu/launch.h"

namespace terrace::kernels::cpu {
namespace {

// `values` as f32 or bf16 elements (rounded towards zero), rows of `columns` with `gap` after each.
struct Matrix {
  Matrix(DType dtype, int64_t rows, int64_t columns, int64_t gap = 0)
      : bytes(rows * (columns + gap) * SizeOf(dtype)),
        view(ViewOf(dtype, nullptr, {rows, columns})) {
    view.row_stride += gap;
    view.data = bytes.data();
  }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;

  void Set(int64_t row, int64_t column, float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint16_t upper = static_cast<uint16_t>(bits >> 16);
    std::byte* to = bytes.data() + (row * view.row_stride + column) * SizeOf(view.dtype);
    if (view.dtype == DType::kF32) {
      std::memcpy(to, &bits, 4);
    } else {
      std::memcpy(to, &upper, 2);
    }
  }
  void Fill(float amplitude) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal(0, amplitude);
    for (int64_t r = 0; r < view.size[0]; ++r) {
      for (int64_t c = 0; c < view.size[1]; ++c) Set(r, c, normal(random));
    }
  }
  // The rows without their gaps.
  std::vector<std::byte> Rows() const {
    std::vector<std::byte> rows;
    const int64_t width = view.size[1] * SizeOf(view.dtype);
    for (int64_t r = 0; r < view.size[0]; ++r) {
      const auto from = bytes.begin() + r * view.row_stride * SizeOf(view.dtype);
      rows.insert(rows.end(), from, from + width);
    }
    return rows;
  }

  std::vector<std::byte> bytes;
  TensorView view;
};

class RecomputeTest : public testing::TestWithParam<std::tuple<DType, MatmulPrecision>> {
 protected:
  void SetUp() override { ASSERT_EQ(Prepare(3).message, ""); }
  // c = gelu(a b + bias) with aux kept, and gelu(aux), are the same bytes.
  void ExpectGeluOfAux(Matrix& a, Matrix& b, std::vector<float>* bias, int64_t gap) {
    const auto& [dtype, precision] = GetParam();
    const int64_t m = a.view.size[0], n = b.view.size[1];
    Matrix c(dtype, m, n, gap), aux(dtype, m, n, gap), again(dtype, m, n);
    const TensorView bias_view = bias == nullptr ? TensorView() : ViewOf(*bias);
    const MatmulAttrs attrs = {.epilogue = Epilogue::kGelu, .precision = precision};
    ASSERT_EQ(
        Launch(Op::kMatmul, attrs, {a.view, b.view, c.view, bias_view, {}, aux.view}, 2).message,
        "");
    ASSERT_EQ(Launch(Op::kGelu, ActivationAttrs{}, {aux.view, again.view}, 3).message, "");
    EXPECT_TRUE(again.Rows() == c.Rows());
  }
};

TEST_P(RecomputeTest, GeluOfWhatTheProductKept) {
  const DType dtype = std::get<0>(GetParam());
  for (int64_t gap : {0, 24}) {
    Matrix a(dtype, 77, 150), b(DType::kF32, 150, 93);
    std::vector<float> bias(93, 0.125f);
    a.Fill(0.3f);
    b.Fill(0.5f);
    ExpectGeluOfAux(a, b, &bias, gap);
  }
}

// Every product that bf16 can hold, infinities and tiny ones included, in whole vectors and tails.
TEST_P(RecomputeTest, GeluOfEveryValue) {
  Matrix a(DType::kF32, 1 << 16, 1), b(DType::kF32, 1, 21);
  for (int64_t i = 0; i < 1 << 16; ++i) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(i) << 16);
    a.Set(i, 0, std::isnan(value) ? 1.0f : value);
  }
  for (int64_t j = 0; j < 21; ++j) b.Set(0, j, 1.0f + static_cast<float>(j) / 64);
  ExpectGeluOfAux(a, b, nullptr, 0);
}

INSTANTIATE_TEST_SUITE_P(All, RecomputeTest,
                         testing::Combine(testing::Values(DType::kF32, DType::kBF16),
                                          testing::Values(MatmulPrecision::kF32,
                                                          MatmulPrecision::kBF16)),
                         [](const auto& info) {
                           return std::string(Name(std::get<0>(info.param))) +
                                  (std::get<1>(info.param) == MatmulPrecision::kBF16 ? "Fast" : "");
                         });

// An op run again on the same values, with other strides and threads, has the same bits.
TEST(RecomputeNormTest, StridesAndThreadsDoNotShowInTheResult) {
  constexpr int64_t kRows = 211, kColumns = 173;
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    Matrix x(dtype, kRows, kColumns, 40), up(dtype, kRows, kColumns);
    x.Fill(1);
    up.Fill(2);
    std::vector<float> weight(kColumns, 1.25f), bias(kColumns, -0.5f), mean(kRows), rstd(kRows);
    const auto run = [&](Op op, Matrix& y, int threads) {
      const std::vector<TensorView> operands =
          op == Op::kSwiglu ? std::vector<TensorView>{x.view, up.view, y.view}
          : op == Op::kRmsNorm
              ? std::vector<TensorView>{x.view, ViewOf(weight), y.view, ViewOf(rstd)}
              : std::vector<TensorView>{x.view, ViewOf(weight), ViewOf(bias),
                                        y.view, ViewOf(mean),   ViewOf(rstd)};
      const OpAttrs attrs =
          op == Op::kSwiglu ? OpAttrs(ActivationAttrs{Activation::kSilu}) : OpAttrs(NormAttrs{});
      ASSERT_EQ(Launch(op, attrs, operands, threads).message, "");
    };
    for (Op op : {Op::kSwiglu, Op::kRmsNorm, Op::kLayerNorm}) {
      Matrix first(dtype, kRows, kColumns), again(dtype, kRows, kColumns, 7);
      run(op, first, 1);
      run(op, again, 3);
      EXPECT_TRUE(first.Rows() == again.Rows()) << Name(op);
    }
  }
}

}  // namespace
}  // namespace terrace::kernels::cpu
