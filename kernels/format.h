// The formats of numbers at rest: one table that says how many bits an element takes, its scales
// counted, how many elements share a scale, and what the format is called. What the bytes mean of
// int8: dynamic_map.h; of int8_linear, int4_linear, fp8 and nf4: block_codes.h.
//
// Thread-safe: constants.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/tensor_view.h"

namespace terrace::kernels {

enum class Format : uint8_t { kF32, kBF16, kF16, kInt8, kInt8Linear, kFP8, kInt4Linear, kNF4 };

struct FormatRow {
  Format format;
  std::string_view name;
  DType elements;  // of the buffer; of formats in blocks: codes
  int64_t block;   // elements that share one f32 scale, in a buffer of its own; 0: no scales
  int64_t packed = 1;  // elements in one of the buffer

  // With its scales.
  constexpr double BitsAnElement() const {
    constexpr int kBits = 8;
    const auto bytes = static_cast<double>(SizeOf(elements)) / static_cast<double>(packed);
    return kBits * (block == 0 ? bytes : bytes + sizeof(float) / static_cast<double>(block));
  }
};

// The block of int8 as a rule: that of 8-bit optimizers. Where the rows of a matrix are cut so that
// no block of a format's size fits between the cuts, its blocks are smaller: a power of two, no
// less than the least one.
inline constexpr int64_t kInt8Block = 256;
inline constexpr int64_t kLeastBlock = 16;
// Of the formats of activations: that of DeepSeek-V3 (2024, arXiv 2412.19437, section 3.3).
inline constexpr int64_t kActivationBlock = 128;

// Of nf4: that of QLoRA (Dettmers et al. 2023, arXiv 2305.14314, section 3).
inline constexpr int64_t kNF4Block = 64;

inline constexpr FormatRow kFormats[] = {
    {Format::kF32, "f32", DType::kF32, 0},
    {Format::kBF16, "bf16", DType::kBF16, 0},
    {Format::kF16, "f16", DType::kF16, 0},
    {Format::kInt8, "int8", DType::kU8, kInt8Block},
    {Format::kInt8Linear, "int8_linear", DType::kU8, kActivationBlock},
    {Format::kFP8, "fp8", DType::kU8, kActivationBlock},
    {Format::kInt4Linear, "int4_linear", DType::kU8, kActivationBlock, 2},
    {Format::kNF4, "nf4", DType::kU8, kNF4Block, 2},
};

constexpr const FormatRow& RowOf(Format format) { return kFormats[static_cast<size_t>(format)]; }

// Null when no format has that name.
constexpr const FormatRow* FindFormat(std::string_view name) {
  for (const FormatRow& row : kFormats) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

}  // namespace terrace::kernels
