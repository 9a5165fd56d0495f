// What streaming through the host relies on: adds and casts of a tensor in chunks, at any address
// and on any number of threads, give the bits of one launch over the whole.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "tests/unit/kernels/cpu/launch.h"

namespace terrace::kernels::cpu {
namespace {

// x and y of `dtypes`, each `shift` elements into its memory; y holds old values.
struct Pair {
  DType x_type, y_type;
  int64_t count = 0;
  int64_t shift = 0;
  std::vector<std::byte> x, y;

  static Pair Random(DType x_type, DType y_type, int64_t count, int64_t shift) {
    Pair pair = {x_type, y_type, count, shift, {}, {}};
    std::mt19937 random(3);
    pair.x.resize((count + shift) * SizeOf(x_type));
    pair.y.resize((count + shift) * SizeOf(y_type));
    for (auto [type, bytes] : {std::pair{x_type, &pair.x}, std::pair{y_type, &pair.y}}) {
      for (int64_t i = shift; i < count + shift; ++i) {
        const float value = static_cast<float>(random() % 20001) / 777.0f - 12.0f;
        // The upper half of an f32 is a bf16.
        const auto* source = reinterpret_cast<const char*>(&value) + 4 - SizeOf(type);
        std::memcpy(bytes->data() + i * SizeOf(type), source, SizeOf(type));
      }
    }
    return pair;
  }

  void Run(Op op, int64_t first, int64_t elements, int threads) {
    const auto part = [&](DType type, std::vector<std::byte>& bytes) {
      return ViewOf(type, bytes.data() + (shift + first) * SizeOf(type), {elements});
    };
    ASSERT_TRUE(Launch(op, NoAttrs{}, {part(x_type, x), part(y_type, y)}, threads).ok());
  }

  std::vector<std::byte> Result() const { return {y.begin() + shift * SizeOf(y_type), y.end()}; }
};

struct Case {
  Op op;
  DType x_type, y_type;
};

class ElementwiseTest : public testing::TestWithParam<Case> {
 protected:
  Pair Start(int64_t count, int64_t shift) const {
    return Pair::Random(GetParam().x_type, GetParam().y_type, count, shift);
  }
  Op op() const { return GetParam().op; }
};

TEST_P(ElementwiseTest, ThreadsChangeNoBit) {
  Pair one = Start(200'003, 0);
  Pair two = one;
  const std::vector<std::byte> old = one.Result();
  one.Run(op(), 0, one.count, 1);
  two.Run(op(), 0, two.count, 2);
  EXPECT_EQ(one.Result(), two.Result());
  EXPECT_NE(one.Result(), old);
}

TEST_P(ElementwiseTest, ChunksOfAnySizeChangeNoBit) {
  Pair whole = Start(50'001, 0);
  const Pair start = whole;
  whole.Run(op(), 0, whole.count, 1);
  for (int64_t chunk : {7, 1'000, 4'096, 5'001}) {
    Pair chunked = start;
    for (int64_t first = 0; first < start.count; first += chunk) {
      chunked.Run(op(), first, std::min(chunk, start.count - first), 2);
    }
    EXPECT_EQ(chunked.Result(), whole.Result()) << chunk;
  }
}

TEST_P(ElementwiseTest, AlignmentChangesNoBit) {
  Pair aligned = Start(5'003, 0);
  aligned.Run(op(), 0, aligned.count, 1);
  for (int64_t shift : {1, 2, 3, 5, 8, 15, 31}) {
    Pair shifted = Start(5'003, shift);
    shifted.Run(op(), 0, shifted.count, 1);
    EXPECT_EQ(shifted.Result(), aligned.Result()) << shift;
  }
}

INSTANTIATE_TEST_SUITE_P(AddsAndCasts, ElementwiseTest,
                         testing::Values(Case{Op::kAdd, DType::kF32, DType::kF32},
                                         Case{Op::kAdd, DType::kBF16, DType::kF32},
                                         Case{Op::kCast, DType::kF32, DType::kBF16},
                                         Case{Op::kCast, DType::kBF16, DType::kF32}));

}  // namespace
}  // namespace terrace::kernels::cpu
