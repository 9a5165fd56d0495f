// Numbers of 8 bits against PyTorch's (tests/golden/pytorch/make_fp8.py), their vectors against
// them, and fp8 products against exact ones within what the formats allow.
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/fp8.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/registry.h"

namespace terrace::kernels::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr Fp8Format kFormats[] = {Fp8Format::kE4M3, Fp8Format::kE5M2};

// The words behind the format's name in fp8.txt, as numbers.
std::vector<uint64_t> GoldenOf(Fp8Format format) {
  std::ifstream file(TERRACE_GOLDEN_FOLDER "/fp8.txt");
  std::string line, word;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    words >> word;
    if (word != (format == Fp8Format::kE4M3 ? "e4m3" : "e5m2")) continue;
    std::vector<uint64_t> numbers;
    while (words >> word) numbers.push_back(std::stoull(word, nullptr, 16));
    return numbers;
  }
  return {};
}

TensorView View(void* data, DType dtype, int64_t rows, int64_t columns, int64_t stride = 0) {
  TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.dims = 2;
  view.size = {rows, columns};
  view.row_stride = stride == 0 ? columns : stride;
  return view;
}

std::vector<float> Normals(int64_t count, float size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, size);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

float OfBF16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

std::vector<uint16_t> Quantised(std::vector<float> x, Fp8Format format, Fp8Scale* scale) {
  std::vector<uint16_t> y(x.size());
  const auto count = static_cast<int64_t>(x.size());
  *scale = QuantiseFp8(View(x.data(), DType::kF32, 1, count),
                       View(y.data(), DType::kBF16, 1, count), format, 2);
  return y;
}

TEST(Fp8Test, All256CodesAreWorthWhatPyTorchSays) {
  for (const Fp8Format format : kFormats) {
    const std::vector<uint64_t> golden = GoldenOf(format);
    ASSERT_GE(golden.size(), 256u);
    for (int code = 0; code < 256; ++code) {
      const float want = std::bit_cast<float>(static_cast<uint32_t>(golden[code]));
      const float got = FromFp8(static_cast<uint8_t>(code), format);
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(got)) << code;
        continue;
      }
      EXPECT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(want)) << code;
      if (std::isfinite(got)) {
        EXPECT_EQ(ToFp8(got, format), code);
      }
    }
  }
}

TEST(Fp8Test, NumbersAreRoundedAsPyTorchRoundsThem) {
  constexpr uint32_t kLow[] = {0x0000, 0x0001, 0x7fff, 0x8000, 0x8001, 0xffff};
  for (const Fp8Format format : kFormats) {
    const std::vector<uint64_t> golden = GoldenOf(format);
    ASSERT_EQ(golden.size(), 256 + std::size(kLow));
    for (size_t i = 0; i < std::size(kLow); ++i) {
      uint64_t hash = 0xcbf29ce484222325u;
      for (uint32_t upper = 0; upper < 1u << 16; ++upper) {
        const auto value = std::bit_cast<float>(upper << 16 | kLow[i]);
        if (!(std::abs(value) <= NumbersOf(format).largest)) continue;
        hash = (hash ^ ToFp8(value, format)) * 0x100000001b3u;
      }
      EXPECT_EQ(hash, golden[256 + i]) << "lower bits " << kLow[i];
    }
  }
}

TEST(Fp8Test, WhatIsTooLargeBecomesTheLargestAndNoNumberNoNumber) {
  for (const Fp8Format format : kFormats) {
    const auto largest = static_cast<uint8_t>(NumbersOf(format).largest_code);
    for (const float value : {NumbersOf(format).largest * 1.2f, 1e30f, kInfinity}) {
      EXPECT_EQ(ToFp8(value, format), largest) << value;
      EXPECT_EQ(ToFp8(-value, format), largest | 0x80) << value;
    }
    EXPECT_EQ(ToFp8(NAN, format), kFp8NaN);
  }
}

// Vectors of every length and stride, tails included, have the values of the codes; and every
// number of threads has the same.
TEST(Fp8Test, VectorsQuantiseAsTheCodesSay) {
  for (const Fp8Format format : kFormats) {
    for (const int64_t columns : {1, 7, 64, 1000, 9001}) {
      constexpr int64_t kRows = 11, kGap = 3;
      std::vector<float> x = Normals(kRows * (columns + kGap), 3.0f, 7);
      for (size_t i = 0; i < x.size(); i += 5) x[i] *= 1e-5f;  // below the normal numbers
      x[0] = -30;
      const TensorView from = View(x.data(), DType::kF32, kRows, columns, columns + kGap);
      std::vector<uint16_t> one(kRows * columns), three(kRows * columns);
      const Fp8Scale scale =
          QuantiseFp8(from, View(one.data(), DType::kBF16, kRows, columns), format, 1);
      float largest = 0;
      for (int64_t row = 0; row < kRows; ++row) {
        for (int64_t i = 0; i < columns; ++i) {
          const float value = x[row * (columns + kGap) + i];
          largest = std::max(largest, std::abs(value));
          EXPECT_EQ(OfBF16(one[row * columns + i]),
                    FromFp8(ToFp8(value * scale.scale, format), format))
              << value;
        }
      }
      EXPECT_EQ(scale.scale, NumbersOf(format).largest / largest);
      EXPECT_EQ(scale.factor, 1 / scale.scale);
      QuantiseFp8(from, View(three.data(), DType::kBF16, kRows, columns), format, 3);
      EXPECT_EQ(one, three);
    }
  }
}

// Half a unit of the last bit: 2^-4 of E4M3, 2^-3 of E5M2; below the normal numbers half a quantum.
TEST(Fp8Test, ErrorsAreHalfAUnitOfTheLastBit) {
  for (const Fp8Format format : kFormats) {
    const Fp8Numbers numbers = NumbersOf(format);
    const std::vector<float> x = Normals(100000, 1.0f, 3);
    Fp8Scale scale;
    const std::vector<uint16_t> y = Quantised(x, format, &scale);
    const double relative = std::ldexp(1.0, -numbers.fraction_bits - 1);
    const double floor = relative * numbers.smallest_normal * scale.factor;
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double error = std::abs(OfBF16(y[i]) * double{scale.factor} - x[i]);
      // The scale itself is rounded to f32.
      EXPECT_LE(error, std::max(relative * std::abs(x[i]), floor) * (1 + 1e-6)) << x[i];
      worst = std::max(worst, error / std::abs(x[i]));
    }
    EXPECT_GT(worst, relative / 2) << "the bound is not idle";
  }
}

TEST(Fp8Test, ZerosTinyTensorsAndInfinities) {
  Fp8Scale scale;
  EXPECT_EQ(Quantised({0.0f, -0.0f}, Fp8Format::kE4M3, &scale), (std::vector<uint16_t>{0, 0x8000}));
  EXPECT_EQ(scale.factor, 1);
  Quantised({1e-44f, 1e-40f}, Fp8Format::kE5M2, &scale);
  EXPECT_TRUE(std::isfinite(scale.scale) && scale.factor > 0) << scale.scale;
  Quantised({1, kInfinity}, Fp8Format::kE4M3, &scale);
  EXPECT_TRUE(std::isnan(scale.factor)) << "all that comes of it is no number";
  const std::vector<uint16_t> y = Quantised({2, NAN}, Fp8Format::kE4M3, &scale);
  EXPECT_EQ(OfBF16(y[0]), 448) << "a NaN is nobody's largest magnitude";
  EXPECT_TRUE(std::isnan(OfBF16(y[1])));
}

// Element by element: no more than the errors of both operands make of the sum of magnitudes.
TEST(Fp8Test, ProductsAreWithinTheFormatsErrors) {
  constexpr int64_t kM = 40, kN = 70, kK = 300;
  std::vector<float> a = Normals(kM * kK, 0.02f, 1), b = Normals(kN * kK, 5.0f, 2), c(kM * kN);
  const MatmulAttrs attrs = {
      .transpose_b = true, .precision = MatmulPrecision::kFP8, .gradient = Fp8Gradient::kA};
  const TensorView operands[] = {View(a.data(), DType::kF32, kM, kK),
                                 View(b.data(), DType::kF32, kN, kK),
                                 View(c.data(), DType::kF32, kM, kN),
                                 {},
                                 {},
                                 {}};
  const std::vector<TensorShape> shapes(std::begin(operands), std::end(operands));
  ASSERT_EQ(CheckShapes(Op::kMatmul, attrs, shapes), "");
  const int64_t bytes = WorkspaceBytes(Op::kMatmul, attrs, shapes, 2);
  std::vector<std::byte> memory(bytes + 64);
  const auto start = reinterpret_cast<uintptr_t>(memory.data());
  std::byte* workspace = memory.data() + (64 - start % 64) % 64;
  ASSERT_TRUE(PrepareGemm(2).ok());
  const std::span<const TensorView> views(operands);
  ASSERT_TRUE(Find(Op::kMatmul)(attrs, views,
                                {.threads = 2, .workspace = workspace, .workspace_bytes = bytes})
                  .ok());
  constexpr double kE5M2 = 1.0 / 8, kE4M3 = 1.0 / 16;
  constexpr double kBoth = kE5M2 + kE4M3 + kE5M2 * kE4M3;
  double errors = 0, sums = 0;
  for (int64_t i = 0; i < kM; ++i) {
    for (int64_t j = 0; j < kN; ++j) {
      double sum = 0, magnitudes = 0;
      for (int64_t k = 0; k < kK; ++k) {
        const double product = double{a[i * kK + k]} * b[j * kK + k];
        sum += product;
        magnitudes += std::abs(product);
      }
      EXPECT_LE(std::abs(c[i * kN + j] - sum), kBoth * magnitudes);
      errors += std::pow(c[i * kN + j] - sum, 2);
      sums += sum * sum;
    }
  }
  const double relative = std::sqrt(errors / sums);
  EXPECT_LE(relative, kBoth);
  EXPECT_GE(relative, kE4M3 / 8) << "it is no fp8 product";
}

}  // namespace
}  // namespace terrace::kernels::cpu
