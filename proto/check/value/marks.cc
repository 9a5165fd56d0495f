// SPDX-License-Identifier: Apache-2.0
#include "proto/check/value/marks.h"

#include <array>
#include <cstddef>

namespace terrace::check {
namespace {

constexpr uint64_t kPrime = (uint64_t{1} << 61) - 1;
// Any number would do that is no root of a short polynomial: the first digits of the golden ratio.
constexpr uint64_t kBase = 0x9e3779b97f4a7c15u % kPrime;

constexpr uint64_t Times(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  const uint64_t sum =
      (static_cast<uint64_t>(product) & kPrime) + static_cast<uint64_t>(product >> 61);
  return sum >= kPrime ? sum - kPrime : sum;
}

constexpr uint64_t Power(uint64_t base, uint64_t exponent) {
  uint64_t power = 1;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1) power = Times(power, base);
    base = Times(base, base);
  }
  return power;
}

// Powers with exponents of one byte: with them one of up to 2^32 is three products.
constexpr size_t kDigits = 4, kDigit = 256;
constexpr auto kPowers = [] {
  std::array<std::array<uint64_t, kDigit>, kDigits> powers{};
  uint64_t base = kBase;
  for (std::array<uint64_t, kDigit>& of_digit : powers) {
    of_digit[0] = 1;
    for (size_t e = 1; e < kDigit; ++e) of_digit[e] = Times(of_digit[e - 1], base);
    base = Times(of_digit[kDigit - 1], base);
  }
  return powers;
}();

}  // namespace

Marks MarkOf(int64_t micro_batch) {
  auto exponent = static_cast<uint64_t>(micro_batch);
  if (exponent >> 32 != 0) return Power(kBase, exponent);
  uint64_t mark = kPowers[0][exponent % kDigit];
  for (size_t digit = 1; (exponent /= kDigit) > 0; ++digit)
    mark = Times(mark, kPowers[digit][exponent % kDigit]);
  return mark;
}

// The sum of a geometric series.
Marks MarksBelow(int64_t count) {
  constexpr uint64_t inverse = Power(kBase - 1, kPrime - 2);  // of kBase - 1, after Fermat
  static_assert(Times(inverse, kBase - 1) == 1);
  return Times(SubtractMarks(MarkOf(count), 1), inverse);
}

Marks AddMarks(Marks a, Marks b) {
  const uint64_t sum = a + b;
  return sum >= kPrime ? sum - kPrime : sum;
}

Marks SubtractMarks(Marks a, Marks b) { return a >= b ? a - b : a + kPrime - b; }

Marks RepeatMarks(Marks marks, uint64_t times) { return Times(marks, times % kPrime); }

Marks MoveMarks(Marks marks, int64_t by) { return Times(marks, MarkOf(by)); }

Marks SpreadMarks(Marks marks, int64_t count) { return Times(marks, MarksBelow(count)); }

}  // namespace terrace::check
