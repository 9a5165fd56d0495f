// Moments in int8 blocks: the maps and codes against bitsandbytes'
// (tests/golden/pytorch/make_int8_blocks.py), the kernel's vectors against single elements, and
// what the op's conformance cases cannot show.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/block_codes.h"
#include "kernels/dynamic_map.h"
#include "kernels/format.h"
#include "tests/unit/kernels/cpu/launch.h"

namespace terrace::kernels::cpu {
namespace {

constexpr int kBlocks = 8;

// The words behind the map's name in int8_blocks.txt.
std::vector<std::string> GoldenOf(const std::string& name) {
  std::ifstream file(TERRACE_GOLDEN_FOLDER "/int8_blocks.txt");
  std::string line, word;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    words >> word;
    if (word != name) continue;
    std::vector<std::string> all;
    while (words >> word) all.push_back(word);
    return all;
  }
  return {};
}

float FloatOf(const std::string& bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(std::stoul(bits, nullptr, 16)));
}

// numbers() of make_int8_blocks.py.
std::vector<float> GoldenNumbers() {
  std::vector<float> numbers;
  uint64_t state = 1;
  for (int block = 0; block < kBlocks; ++block) {
    for (int64_t i = 0; i < kInt8Block; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const auto mantissa = static_cast<float>(static_cast<int64_t>(state >> 40) - (1 << 23));
      const int shift = static_cast<int>((state >> 33) % (2 * block + 1));
      numbers.push_back(std::ldexp(mantissa, -23 - shift));
    }
  }
  return numbers;
}

float ScaleOf(const float* numbers, int64_t count) {
  uint32_t bits = 0;
  for (int64_t i = 0; i < count; ++i) bits = LargerMagnitude(bits, numbers[i]);
  return std::bit_cast<float>(bits);
}

TEST(DynamicMapTest, NumbersAndCodesAreThoseOfBitsandbytes) {
  for (const bool is_signed : {true, false}) {
    const DynamicMap& map = is_signed ? kSignedMap : kUnsignedMap;
    const std::vector<std::string> golden = GoldenOf(is_signed ? "signed" : "unsigned");
    ASSERT_EQ(golden.size(), 256u + 2 * kBlocks);
    for (int code = 0; code < 256; ++code) {
      EXPECT_EQ(std::bit_cast<uint32_t>(map.number[code]),
                std::bit_cast<uint32_t>(FloatOf(golden[code])))
          << code;
    }
    std::vector<float> numbers = GoldenNumbers();
    for (float& number : numbers) number *= is_signed ? 1 : number;
    for (int block = 0; block < kBlocks; ++block) {
      const float* x = numbers.data() + block * kInt8Block;
      const float scale = ScaleOf(x, kInt8Block);
      EXPECT_EQ(scale, FloatOf(golden[256 + 2 * block]));
      const std::string& codes = golden[257 + 2 * block];
      ASSERT_EQ(codes.size(), 2u * kInt8Block);
      for (int64_t i = 0; i < kInt8Block; ++i) {
        EXPECT_EQ(DynamicCode(x[i] * InverseScale(scale), map.bound, map.start),
                  std::stoi(codes.substr(2 * i, 2), nullptr, 16))
            << "block " << block << " element " << i;
      }
    }
  }
}

// The upper bits name a place to start from which one comparison is enough: next to every bound,
// and between them.
TEST(DynamicMapTest, OneComparisonFindsTheCodeThatASearchFinds) {
  for (const DynamicMap* map : {&kSignedMap, &kUnsignedMap}) {
    const auto search = [map](float number) {
      return std::lower_bound(map->bound, map->bound + 255, number) - map->bound;
    };
    std::vector<float> numbers = {0.0f, -0.0f, 1.0f, -1.0f, 1e-30f, -1e-30f};
    for (int i = 0; i < 255; ++i) {
      const float bound = map->bound[i];
      for (const float other : {-2.0f, 2.0f}) numbers.push_back(std::nextafter(bound, other));
      numbers.push_back(bound);
    }
    for (uint32_t bits = 0; bits <= 0x3f800000; bits += 9973) {
      numbers.push_back(std::bit_cast<float>(bits));
      numbers.push_back(-numbers.back());
    }
    for (const float number : numbers)
      ASSERT_EQ(DynamicCode(number, map->bound, map->start), search(number)) << number;
  }
}

TEST(FormatTest, RowsSayWhatAnElementTakes) {
  EXPECT_EQ(FindFormat("f32")->BitsAnElement(), 32);
  EXPECT_EQ(FindFormat("bf16")->BitsAnElement(), 16);
  EXPECT_EQ(FindFormat("int8")->BitsAnElement(), 8 * (1 + 4.0 / 256));
  EXPECT_EQ(FindFormat("nf4")->BitsAnElement(), 4 + 32.0 / 64);
  EXPECT_EQ(FindFormat("nf3"), nullptr);
  for (const FormatRow& row : kFormats) EXPECT_EQ(&RowOf(row.format), &row);
}

struct Int8State {
  std::vector<float> grad, param, m_scales, v_scales;
  std::vector<uint8_t> m, v;
  int64_t block;

  Int8State(int64_t count, int64_t elements_a_block)
      : grad(count), param(count, 1.0f), m(count), v(count), block(elements_a_block) {
    m_scales.resize((count + block - 1) / block);
    v_scales.resize(m_scales.size());
  }

  void Step(int step, int threads = 1) {
    std::vector<float> scale = {1, 0, 0, 0};
    std::vector<float> schedule = {0.01f, static_cast<float>(1 - std::pow(0.9, step)),
                                   static_cast<float>(1 - std::pow(0.95, step)), 0};
    const auto count = static_cast<int64_t>(grad.size());
    ASSERT_TRUE(Launch(Op::kUpdateInt8,
                       UpdateAttrs{.beta2 = 0.95f, .weight_decay = 0.1f, .block = block},
                       {ViewOf(grad), ViewOf(param), ViewOf(DType::kU8, m.data(), {count}),
                        ViewOf(DType::kU8, v.data(), {count}), ViewOf(scale), ViewOf(schedule),
                        ViewOf(m_scales), ViewOf(v_scales)},
                       threads)
                    .ok());
  }

  float M(int64_t i) const { return kSignedMap.number[m[i]] * m_scales[i / block]; }
  float V(int64_t i) const { return kUnsignedMap.number[v[i]] * v_scales[i / block]; }
};

// Of a number from the nearest one that the map has, and what rounding f32 adds.
float Distance(const DynamicMap& map, float scale, float number) {
  float least = std::numeric_limits<float>::infinity();
  for (const float of_map : map.number) least = std::min(least, std::abs(of_map * scale - number));
  return least + 1e-6f * std::abs(number);
}

// From nothing, which is what a buffer of zeros is: codes of 0 under scales of 0.
TEST(AdamwInt8Test, EncodesWhatAdamwWithF32MomentsWouldKeep) {
  constexpr int64_t kCount = 1000;
  Int8State state(kCount, kInt8Block);
  std::vector<float> param(kCount, 1.0f);
  for (int64_t i = 0; i < kCount; ++i) {
    state.grad[i] =
        std::sin(static_cast<float>(i)) * std::ldexp(1.0f, static_cast<int>(i % 20) - 9);
    if (i >= 768) state.grad[i] = 0;
  }
  state.Step(1);
  for (int64_t i = 0; i < kCount; ++i) {
    const float m = 0.1f * state.grad[i], v = 0.05f * state.grad[i] * state.grad[i];
    const float m_scale = state.m_scales[i / kInt8Block], v_scale = state.v_scales[i / kInt8Block];
    EXPECT_LE(std::abs(state.M(i) - m), 1.0001f * Distance(kSignedMap, m_scale, m)) << i;
    EXPECT_LE(std::abs(state.V(i) - v), 1.0001f * Distance(kUnsignedMap, v_scale, v)) << i;
  }
  EXPECT_EQ(state.m_scales.back(), 0);
  EXPECT_EQ(state.m[999], 127);  // of the map with signs the number 0
  EXPECT_EQ(state.v[999], 0);
}

TEST(AdamwInt8Test, VectorsAreSingleElements) {
  for (const int64_t count : {int64_t{1}, int64_t{255}, int64_t{257}, int64_t{5000}}) {
    Int8State state(count, kInt8Block);
    for (int64_t i = 0; i < count; ++i) state.grad[i] = std::cos(static_cast<float>(i * i));
    state.Step(1);
    const Int8State before = state;
    state.Step(2);
    // The moments in f32 from the kernel for these, by the same vectors.
    std::vector<float> m(count), v(count), param = before.param, grad = before.grad;
    for (int64_t i = 0; i < count; ++i) m[i] = before.M(i), v[i] = before.V(i);
    std::vector<float> scale = {1, 0, 0, 0};
    std::vector<float> schedule = {0.01f, static_cast<float>(1 - std::pow(0.9, 2)),
                                   static_cast<float>(1 - std::pow(0.95, 2)), 0};
    ASSERT_TRUE(
        Launch(Op::kUpdate, UpdateAttrs{.beta2 = 0.95f, .weight_decay = 0.1f},
               {ViewOf(grad), ViewOf(param), ViewOf(m), ViewOf(v), ViewOf(scale), ViewOf(schedule)})
            .ok());
    EXPECT_EQ(state.param, param);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t block = i / kInt8Block, first = block * kInt8Block;
      const int64_t in_block = std::min(kInt8Block, count - first);
      ASSERT_EQ(state.m_scales[block], ScaleOf(m.data() + first, in_block));
      ASSERT_EQ(state.v_scales[block], ScaleOf(v.data() + first, in_block));
      ASSERT_EQ(state.m[i], DynamicCode(m[i] * InverseScale(state.m_scales[block]),
                                        kSignedMap.bound, kSignedMap.start));
      ASSERT_EQ(state.v[i], DynamicCode(v[i] * InverseScale(state.v_scales[block]),
                                        kUnsignedMap.bound, kUnsignedMap.start));
    }
  }
}

TEST(AdamwInt8Test, ScalesSayWhatIsNotFinite) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Int8State state(600, kInt8Block);
    for (float& grad : state.grad) grad = 1;
    state.grad[300] = bad;
    state.Step(1);
    EXPECT_TRUE(std::isfinite(state.m_scales[0]) && std::isfinite(state.v_scales[2]));
    EXPECT_FALSE(std::isfinite(state.m_scales[1]) || std::isfinite(state.v_scales[1]));
  }
}

TEST(AdamwInt8Test, ThreadsChangeNothing) {
  Int8State one(300000, 64), three(300000, 64);
  for (size_t i = 0; i < one.grad.size(); ++i) {
    one.grad[i] = three.grad[i] = std::sin(static_cast<float>(i));
  }
  for (int step = 1; step <= 2; ++step) one.Step(step), three.Step(step, 3);
  EXPECT_EQ(one.param, three.param);
  EXPECT_EQ(one.m, three.m);
  EXPECT_EQ(one.v_scales, three.v_scales);
}

}  // namespace
}  // namespace terrace::kernels::cpu
