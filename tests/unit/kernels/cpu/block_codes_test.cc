// Formats in blocks: the vectors against single elements (block_codes.h), to the bit, both against
// torchao's and bitsandbytes' (tests/golden/pytorch/make_block_codes.py, make_nf4.py), and what the
// op's conformance cases cannot show: blocks that are zero, tiny or not finite.
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/block_codes.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "hwy/targets.h"
#include "tests/unit/kernels/cpu/launch.h"

namespace terrace::kernels::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr Format kFormatsInBlocks[] = {Format::kInt8Linear, Format::kFP8, Format::kInt4Linear,
                                       Format::kNF4};

struct Blocks {
  std::vector<uint8_t> codes;  // two in a byte of int4 and nf4
  std::vector<float> scales;
};

Blocks Encode(std::vector<float> x, const BlockAttrs& attrs, int threads = 1,
              std::vector<float>* residual = nullptr) {
  Blocks blocks;
  blocks.codes.resize(x.size() / RowOf(attrs.format).packed);
  blocks.scales.resize((x.size() + attrs.block - 1) / attrs.block);
  const auto count = static_cast<int64_t>(blocks.codes.size());
  EXPECT_TRUE(
      Launch(Op::kEncodeBlocks, attrs,
             {ViewOf(x), ViewOf(DType::kU8, blocks.codes.data(), {count}), ViewOf(blocks.scales),
              residual == nullptr ? TensorView() : ViewOf(*residual)},
             threads)
          .ok());
  return blocks;
}

// The code of element `i`.
uint8_t CodeOf(const Blocks& blocks, Format format, size_t i) {
  if (RowOf(format).packed == 1) return blocks.codes[i];
  return blocks.codes[i / 2] >> (i % 2 * 4) & 15;
}

std::vector<float> Decode(Blocks blocks, const BlockAttrs& attrs) {
  const auto count = static_cast<int64_t>(blocks.codes.size());
  std::vector<float> y(blocks.codes.size() * RowOf(attrs.format).packed);
  EXPECT_TRUE(
      Launch(Op::kDecodeBlocks, attrs,
             {ViewOf(DType::kU8, blocks.codes.data(), {count}), ViewOf(blocks.scales), ViewOf(y)})
          .ok());
  return y;
}

// Magnitudes over thirty binades, both signs, zeros of both signs among them.
std::vector<float> Numbers(int64_t count) {
  std::vector<float> numbers;
  uint64_t state = 1;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto mantissa = static_cast<float>(static_cast<int64_t>(state >> 40) - (1 << 23));
    numbers.push_back(state >> 20 & 15 ? std::ldexp(mantissa, -static_cast<int>(state >> 34 & 31))
                                       : std::copysign(0.0f, mantissa));
  }
  return numbers;
}

void ExpectSingleElements() {
  for (const Format format : kFormatsInBlocks) {
    // The last block is no whole one.
    const std::vector<float> x = Numbers(RowOf(format).packed == 2 ? 200'006 : 200'003);
    for (const int64_t block : {16, 128}) {
      const BlockAttrs attrs = {.format = format, .block = block};
      const Blocks one = Encode(x, attrs), many = Encode(x, attrs, 2);
      ASSERT_EQ(one.codes, many.codes);
      ASSERT_EQ(one.scales, many.scales);
      const std::vector<float> y = Decode(one, attrs);
      for (size_t b = 0; b < one.scales.size(); ++b) {
        const size_t begin = b * block, end = std::min(x.size(), begin + block);
        uint32_t largest = 0;
        for (size_t i = begin; i < end; ++i) largest = LargerMagnitude(largest, x[i]);
        const BlockScale scale = ScaleOfBlock(largest, format);
        ASSERT_EQ(one.scales[b], scale.scale);
        for (size_t i = begin; i < end; ++i) {
          const uint8_t code = CodeOf(one, format, i);
          ASSERT_EQ(code, BlockCode(x[i] * scale.inverse, format)) << x[i];
          ASSERT_EQ(y[i], BlockNumber(code, format) * scale.scale);
        }
      }
    }
  }
}

TEST(BlockCodesTest, VectorsOfEachWidthAreSingleElementsToTheBitWhateverTheThreads) {
  for (int64_t targets = hwy::SupportedTargets(); targets != 0; targets &= targets - 1) {
    const int64_t target = targets & -targets;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    ExpectSingleElements();
    hwy::SetSupportedTargetsForTest(0);
  }
}

// numbers() of make_block_codes.py and of make_nf4.py.
std::vector<float> GoldenNumbers(int64_t blocks, int64_t size) {
  std::vector<float> numbers;
  uint64_t state = 1;
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t i = 0; i < size; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const auto mantissa = static_cast<float>(static_cast<int64_t>(state >> 40) - (1 << 23));
      const auto shift = static_cast<int>((state >> 33) % static_cast<uint64_t>(block + 1));
      numbers.push_back(std::ldexp(mantissa, -23 - shift));
    }
  }
  return numbers;
}

// It divides by a scale where a code is made of an element times the inverse.
TEST(BlockCodesTest, CodesAreThoseOfTorchaoAndScalesToTheirLastBit) {
  constexpr int64_t kBlocks = 16;
  std::ifstream file(TERRACE_GOLDEN_FOLDER "/block_codes.txt");
  std::string line;
  int formats = 0;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name, bits, codes;
    words >> name;
    SCOPED_TRACE(name);
    const Format format = name == "fp8"    ? Format::kFP8
                          : name == "int4" ? Format::kInt4Linear
                                           : Format::kInt8Linear;
    const Blocks blocks = Encode(GoldenNumbers(kBlocks, kActivationBlock), {.format = format});
    ASSERT_EQ(blocks.scales.size(), static_cast<size_t>(kBlocks));
    for (int64_t block = 0; block < kBlocks; ++block) {
      words >> bits >> codes;
      ASSERT_EQ(codes.size(), 2u * kActivationBlock);
      const auto scale = std::bit_cast<float>(static_cast<uint32_t>(std::stoul(bits, nullptr, 16)));
      EXPECT_NEAR(blocks.scales[block] / scale, 1, 0x1p-22) << "block " << block;
      for (int64_t i = 0; i < kActivationBlock; ++i) {
        EXPECT_EQ(CodeOf(blocks, format, block * kActivationBlock + i),
                  std::stoi(codes.substr(2 * i, 2), nullptr, 16))
            << "block " << block << " element " << i;
      }
    }
    ++formats;
  }
  EXPECT_EQ(formats, 3);
}

// To the bit: bitsandbytes too multiplies by the scale's inverse.
TEST(BlockCodesTest, NF4IsThatOfBitsandbytes) {
  std::ifstream file(TERRACE_GOLDEN_FOLDER "/nf4.txt");
  std::string word, codes;
  for (const float number : kNormalMap.number) {
    file >> word;
    EXPECT_EQ(std::bit_cast<uint32_t>(number), std::stoul(word, nullptr, 16)) << number;
  }
  constexpr int64_t kBlocks = 24;
  const Blocks blocks =
      Encode(GoldenNumbers(kBlocks, kNF4Block), {.format = Format::kNF4, .block = kNF4Block});
  for (int64_t block = 0; block < kBlocks; ++block) {
    ASSERT_TRUE(file >> word >> codes);
    ASSERT_EQ(codes.size(), static_cast<size_t>(kNF4Block));
    EXPECT_EQ(std::bit_cast<uint32_t>(blocks.scales[block]), std::stoul(word, nullptr, 16));
    for (int64_t i = 0; i < kNF4Block; ++i) {
      EXPECT_EQ(CodeOf(blocks, Format::kNF4, block * kNF4Block + i),
                std::stoi(codes.substr(i, 1), nullptr, 16))
          << "block " << block << " element " << i;
    }
  }
}

TEST(BlockCodesTest, EveryCodeComesBackAsItself) {
  for (const Format format : kFormatsInBlocks) {
    const int codes = RowOf(format).packed == 2 ? 16 : 256;
    for (int code = 0; code < codes; ++code) {
      const float number = BlockNumber(static_cast<uint8_t>(code), format);
      const bool none = format == Format::kFP8   ? std::isnan(number)
                        : format == Format::kNF4 ? false
                                                 : code == codes / 2;
      if (none) continue;
      EXPECT_EQ(BlockCode(number, format), code) << number;
    }
  }
}

// int8 and int4: at most half of a 127th or a 7th of the largest; fp8: a sixteenth of the number,
// or half a quantum; nf4: half of what lies between -1 and the number above it.
TEST(BlockCodesTest, NumbersComeBackWithinHalfAStep) {
  const std::vector<float> x = Numbers(64 * kActivationBlock);
  for (const Format format : kFormatsInBlocks) {
    const BlockAttrs attrs = {.format = format};
    const Blocks blocks = Encode(x, attrs);
    const std::vector<float> y = Decode(blocks, attrs);
    for (size_t i = 0; i < x.size(); ++i) {
      const float scale = blocks.scales[i / kActivationBlock];
      const float half = format == Format::kFP8
                             ? std::max(std::abs(x[i]) / 16, scale * 0x1p-10f)
                             : scale / 2 * (format == Format::kNF4 ? 1 + kNormalMap.number[1] : 1);
      EXPECT_LE(std::abs(y[i] - x[i]), half * (1 + 1e-5f)) << x[i] << " is " << y[i];
    }
  }
}

TEST(BlockCodesTest, ZerosComeBackAsZerosAndTinyNumbersAsFiniteOnes) {
  for (const Format format : kFormatsInBlocks) {
    const BlockAttrs attrs = {.format = format, .block = 16};
    for (const float y : Decode(Encode(std::vector<float>(40, 0.0f), attrs), attrs))
      EXPECT_EQ(y, 0);
    for (const float tiny : {0x1p-149f, 0x1p-126f, 0x1p-119f}) {
      for (const float y : Decode(Encode(std::vector<float>(16, tiny), attrs), attrs)) {
        EXPECT_TRUE(std::isfinite(y));
        EXPECT_LE(std::abs(y - tiny), tiny);
      }
    }
    constexpr float most = 0x1.fep127f;  // the largest of bf16
    for (const float y : Decode(Encode(std::vector<float>(16, most), attrs), attrs)) {
      EXPECT_NEAR(y / most, 1, 1e-6);
    }
  }
}

// What one code is not worth the next ones make good for: the sums of many codes come near to those
// of the elements.
TEST(BlockCodesTest, WhatCodesAreNotWorthIsKeptForTheNext) {
  constexpr int kTimes = 200;
  constexpr int64_t kCount = 3 * kActivationBlock + 34;
  const std::vector<float> x = Numbers(kCount);
  for (const Format format : kFormatsInBlocks) {
    const BlockAttrs attrs = {.format = format};
    const std::vector<float> once = Decode(Encode(x, attrs), attrs);
    std::vector<float> residual(kCount);
    std::vector<double> sent(kCount);
    for (int time = 0; time < kTimes; ++time) {
      std::vector<float> other = residual;
      const Blocks blocks = Encode(x, attrs, 1, &residual), threads = Encode(x, attrs, 2, &other);
      ASSERT_EQ(blocks.codes, threads.codes);
      ASSERT_EQ(residual, other);
      const std::vector<float> y = Decode(blocks, attrs);
      for (int64_t i = 0; i < kCount; ++i) sent[i] += y[i];
    }
    double error = 0, error_without = 0;
    for (int64_t i = 0; i < kCount; ++i) {
      error += std::abs(sent[i] / kTimes - x[i]);
      error_without += std::abs(once[i] - x[i]);
    }
    EXPECT_LT(error, error_without / 10) << RowOf(format).name;
  }
}

TEST(BlockCodesTest, NothingIsKeptOfABlockThatIsNotFinite) {
  for (const Format format : kFormatsInBlocks) {
    for (const float bad : {kInfinity, kNaN}) {
      std::vector<float> x = Numbers(2 * kActivationBlock), residual(x.size(), 0.01f);
      x[7] = bad;
      Encode(x, {.format = format}, 1, &residual);
      for (int64_t i = 0; i < kActivationBlock; ++i) EXPECT_EQ(residual[i], 0);
      bool kept = false;
      for (size_t i = kActivationBlock; i < x.size(); ++i) kept |= residual[i] != 0.01f;
      EXPECT_TRUE(kept);
    }
  }
}

TEST(BlockCodesTest, SumsAreThoseOfWhatEachPartIsWorth) {
  constexpr int64_t kParts = 3, kCount = 70'006;
  for (const Format format : kFormatsInBlocks) {
    const BlockAttrs attrs = {.format = format};
    Blocks all;
    std::vector<double> sum(kCount), magnitude(kCount);
    for (int64_t p = 0; p < kParts; ++p) {
      std::vector<float> x = Numbers(kCount + p);
      x.erase(x.begin(), x.begin() + p);
      const Blocks part = Encode(x, attrs);
      const std::vector<float> y = Decode(part, attrs);
      for (int64_t i = 0; i < kCount; ++i) {
        sum[i] += y[i];
        magnitude[i] += std::abs(y[i]);
      }
      all.codes.insert(all.codes.end(), part.codes.begin(), part.codes.end());
      all.scales.insert(all.scales.end(), part.scales.begin(), part.scales.end());
    }
    const auto blocks = static_cast<int64_t>(all.scales.size()) / kParts;
    std::vector<float> of_one_thread;
    for (const int threads : {1, 2}) {
      std::vector<float> y(kCount);
      ASSERT_TRUE(
          Launch(Op::kSumBlocks, attrs,
                 {ViewOf(DType::kU8, all.codes.data(), {kParts, kCount / RowOf(format).packed}),
                  ViewOf(DType::kF32, all.scales.data(), {kParts, blocks}), ViewOf(y)},
                 threads)
              .ok());
      for (int64_t i = 0; i < kCount; ++i) ASSERT_NEAR(y[i], sum[i], 0x1p-22 * magnitude[i]);
      if (threads == 1) of_one_thread = y;
      EXPECT_TRUE(y == of_one_thread);
    }
  }
}

// As if each part had been encoded alone, and those of one number were put one behind the other.
TEST(BlockCodesTest, OfRunsTheSamePartsComeTogether) {
  constexpr int64_t kRuns = 3, kParts = 4, kBlock = 16, kPart = 5 * kBlock;
  const std::vector<float> x = Numbers(kRuns * kParts * kPart);
  for (const Format format : kFormatsInBlocks) {
    const BlockAttrs plain = {.format = format, .block = kBlock};
    BlockAttrs attrs = plain;
    attrs.runs = kRuns;
    attrs.parts = kParts;
    Blocks want;
    for (int64_t part = 0; part < kParts; ++part) {
      for (int64_t run = 0; run < kRuns; ++run) {
        const auto begin = x.begin() + (run * kParts + part) * kPart;
        const Blocks one = Encode({begin, begin + kPart}, plain);
        want.codes.insert(want.codes.end(), one.codes.begin(), one.codes.end());
        want.scales.insert(want.scales.end(), one.scales.begin(), one.scales.end());
      }
    }
    for (const int threads : {1, 2}) {
      const Blocks got = Encode(x, attrs, threads);
      EXPECT_EQ(got.codes, want.codes);
      EXPECT_EQ(got.scales, want.scales);
    }
  }
}

// The step is skipped then, as it is without.
TEST(BlockCodesTest, OfABlockThatIsNotFiniteNothingIs) {
  for (const Format format : kFormatsInBlocks) {
    for (const float bad : {kInfinity, -kInfinity, kNaN}) {
      std::vector<float> x(48, 1.0f);
      x[20] = bad;
      const BlockAttrs attrs = {.format = format, .block = 16};
      const std::vector<float> y = Decode(Encode(x, attrs), attrs);
      for (size_t i = 0; i < x.size(); ++i) {
        const bool of_the_block = i / 16 == 1;
        EXPECT_EQ(std::isnan(y[i]), of_the_block) << bad << " element " << i;
      }
    }
  }
}

}  // namespace
}  // namespace terrace::kernels::cpu
