// SPDX-License-Identifier: Apache-2.0
// Compiled with -O3 and without contraction (CMakeLists.txt): the loops over kBlocks vectorise, and
// every machine rounds alike.
#include "worker/checkpoint/numbers/random_normal.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/philox.h"

namespace terrace {
namespace {

constexpr int kBlocks = 64;          // Philox blocks computed together
constexpr int kPairs = kBlocks * 2;  // Box-Muller pairs in them
constexpr int kElements = kBlocks * 4;

struct Words {
  uint32_t word[4][kBlocks];
};

void PhiloxBatch(uint64_t seed, uint64_t stream, uint64_t first_block, Words* out) {
  uint32_t* c0 = out->word[0];
  uint32_t* c1 = out->word[1];
  uint32_t* c2 = out->word[2];
  uint32_t* c3 = out->word[3];
  for (int i = 0; i < kBlocks; ++i) {
    c0[i] = static_cast<uint32_t>(first_block + i);
    c1[i] = static_cast<uint32_t>((first_block + i) >> 32);
    c2[i] = static_cast<uint32_t>(stream);
    c3[i] = static_cast<uint32_t>(stream >> 32);
  }
  uint32_t k0 = static_cast<uint32_t>(seed);
  uint32_t k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kBlocks; ++i) {
      const uint64_t product0 = uint64_t{0xD2511F53} * c0[i];
      const uint64_t product1 = uint64_t{0xCD9E8D57} * c2[i];
      const uint32_t next0 = static_cast<uint32_t>(product1 >> 32) ^ c1[i] ^ k0;
      const uint32_t next2 = static_cast<uint32_t>(product0 >> 32) ^ c3[i] ^ k1;
      c1[i] = static_cast<uint32_t>(product1);
      c3[i] = static_cast<uint32_t>(product0);
      c0[i] = next0;
      c2[i] = next2;
    }
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
}

// Natural logarithm of x in (0, 1): the mantissa's polynomial of Cephes logf.
inline float Log(float x) {
  const int32_t bits = std::bit_cast<int32_t>(x) - 0x3f3504f3;  // mantissa in [sqrt(1/2), sqrt(2))
  const float exponent = static_cast<float>(bits >> 23);
  const float m = std::bit_cast<float>((bits & 0x007fffff) + 0x3f3504f3) - 1.0f;
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  const float square = m * m;
  return m + (m * square * p - 0.5f * square) + exponent * 0.693147180559945f;
}

// Sine and cosine of 2 pi times the fraction `turn` / 2^24.
inline void SinCosTurn(int32_t turn, float* sine, float* cosine) {
  const int32_t quadrant =
      (turn + (1 << 21)) >> 22;  // 0 to 4: the nearest multiple of a quarter turn
  const float angle =
      static_cast<float>(turn - (quadrant << 22)) * (6.28318530717958648f / 16777216.0f);
  const float square = angle * angle;
  float s = -1.9515295891e-4f;
  s = s * square + 8.3321608736e-3f;
  s = s * square - 1.6666654611e-1f;
  s = angle + angle * square * s;
  float c = 2.443315711809948e-5f;
  c = c * square - 1.388731625493765e-3f;
  c = c * square + 4.166664568298827e-2f;
  c = 1.0f - 0.5f * square + square * square * c;
  const bool swapped = (quadrant & 1) != 0;
  const float a = swapped ? c : s;
  const float b = swapped ? s : c;
  *sine = (quadrant & 2) != 0 ? -a : a;
  *cosine = ((quadrant + 1) & 2) != 0 ? -b : b;
}

// Words 0, 1 make normals 0, 1 of a block; words 2, 3 the other two.
void BoxMuller(const Words& words, float (*out)[kBlocks]) {
  for (int half = 0; half < 2; ++half) {
    const uint32_t* radius_word = words.word[2 * half];
    const uint32_t* turn_word = words.word[2 * half + 1];
    for (int i = 0; i < kBlocks; ++i) {
      const float uniform =
          static_cast<float>(static_cast<int32_t>(radius_word[i] >> 8)) * 0x1p-24f + 0x1p-25f;
      const float radius = std::sqrt(-2.0f * Log(uniform));
      float sine, cosine;
      SinCosTurn(static_cast<int32_t>(turn_word[i] >> 8), &sine, &cosine);
      out[2 * half][i] = radius * cosine;
      out[2 * half + 1][i] = radius * sine;
    }
  }
}

// out[i] = mean + scale times the number of element begin + i, which `numbers` makes of words.
template <typename Numbers>
void FillFrom(uint64_t seed, uint64_t stream, int64_t begin, float mean, float scale,
              std::span<float> out, const Numbers& numbers) {
  Words words;
  float made[4][kBlocks];
  int64_t done = 0;
  while (done < static_cast<int64_t>(out.size())) {
    const int64_t position = begin + done;
    const int64_t first = position / kElements * kElements;
    PhiloxBatch(seed, stream, first / 4, &words);
    numbers(words, made);
    const int64_t skip = position - first;
    const int64_t count = std::min<int64_t>(kElements - skip, out.size() - done);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t element = skip + i;
      out[done + i] = mean + scale * made[element % 4][element / 4];
    }
    done += count;
  }
}

}  // namespace

PhiloxBlock Philox4x32(PhiloxBlock counter, std::array<uint32_t, 2> key) {
  const kernels::PhiloxBlock block =
      kernels::Philox({{counter[0], counter[1], counter[2], counter[3]}}, {{key[0], key[1]}});
  return std::to_array(block.word);
}

uint64_t StreamOfName(std::string_view name) { return XXH3_64bits(name.data(), name.size()); }

void FillUniform(uint64_t seed, uint64_t stream, int64_t begin, float mean, float stddev,
                 std::span<float> out) {
  const auto numbers = [](const Words& words, float(*to)[kBlocks]) {
    constexpr float kStep = 0x1p-23f;  // of 24 bits over [-1, 1)
    for (int word = 0; word < 4; ++word) {
      for (int i = 0; i < kBlocks; ++i)
        to[word][i] =
            static_cast<float>(static_cast<int32_t>(words.word[word][i] >> 8)) * kStep - 1;
    }
  };
  constexpr float kHalfWidth = 1.7320508075688772f;  // in standard deviations: sqrt(3)
  FillFrom(seed, stream, begin, mean, stddev * kHalfWidth, out, numbers);
}

void FillNormal(uint64_t seed, uint64_t stream, int64_t begin, float mean, float stddev,
                std::span<float> out) {
  FillFrom(seed, stream, begin, mean, stddev, out, BoxMuller);
}

}  // namespace terrace
