// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/numbers/frozen_codes.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/status_macros.h"
#include "kernels/block_codes.h"

namespace terrace {
namespace {

constexpr int64_t kNumbers = 8192;  // at a time, on the stack: whole blocks of any size

kernels::BlockScale ScaleOf(std::span<const float> numbers, kernels::Format format) {
  uint32_t bits = 0;
  for (const float number : numbers) bits = kernels::LargerMagnitude(bits, number);
  return kernels::ScaleOfBlock(bits, format);
}

// Calls take(b, numbers) for each block of [begin, end).
template <typename Take>
absl::Status ForEachBlock(const CodeFormat& format, const NumberSource& source, int64_t begin,
                          int64_t end, const Take& take) {
  std::array<float, kNumbers> numbers;
  const int64_t at_once = kNumbers / format.block;
  for (int64_t first = begin; first < end; first += at_once) {
    const int64_t blocks = std::min(at_once, end - first);
    RETURN_IF_ERROR(source(first * format.block, std::span(numbers).first(blocks * format.block)));
    for (int64_t b = 0; b < blocks; ++b)
      take(first + b, std::span<const float>(numbers).subspan(b * format.block, format.block));
  }
  return absl::OkStatus();
}

// The loop is of one format, so that the compiler vectorises it.
template <kernels::Format kFormat>
void EncodeBlock(std::span<const float> numbers, uint8_t* codes) {
  const float inverse = ScaleOf(numbers, kFormat).inverse;
  for (size_t i = 0; i < numbers.size(); ++i)
    codes[i] = kernels::BlockCode(numbers[i] * inverse, kFormat);
}

void EncodeBlock(kernels::Format format, std::span<const float> numbers, uint8_t* codes) {
  switch (format) {
    case kernels::Format::kNF4:
      return EncodeBlock<kernels::Format::kNF4>(numbers, codes);
    case kernels::Format::kInt4Linear:
      return EncodeBlock<kernels::Format::kInt4Linear>(numbers, codes);
    case kernels::Format::kFP8:
      return EncodeBlock<kernels::Format::kFP8>(numbers, codes);
    default:
      return EncodeBlock<kernels::Format::kInt8Linear>(numbers, codes);
  }
}

}  // namespace

absl::Status EncodeCodes(const CodeFormat& format, const NumberSource& source, int64_t begin,
                         std::span<std::byte> to) {
  const int64_t bytes = format.block_bytes(), end = begin + static_cast<int64_t>(to.size());
  const auto take = [&](int64_t b, std::span<const float> numbers) {
    std::array<uint8_t, kernels::kInt8Block> codes;
    EncodeBlock(format.row->format, numbers, codes.data());
    if (format.row->packed == 2) {
      for (int64_t i = 0; i < bytes; ++i)
        codes[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
    }
    const int64_t first = std::max(begin, b * bytes), last = std::min(end, (b + 1) * bytes);
    std::memcpy(to.data() + (first - begin), codes.data() + (first - b * bytes), last - first);
  };
  return ForEachBlock(format, source, begin / bytes, (end + bytes - 1) / bytes, take);
}

absl::Status EncodeScales(const CodeFormat& format, const NumberSource& source, int64_t begin,
                          std::span<std::byte> to) {
  const int64_t end = begin + static_cast<int64_t>(to.size() / sizeof(float));
  return ForEachBlock(format, source, begin, end, [&](int64_t b, std::span<const float> numbers) {
    const float scale = ScaleOf(numbers, format.row->format).scale;
    std::memcpy(to.data() + (b - begin) * sizeof(scale), &scale, sizeof(scale));
  });
}

}  // namespace terrace
