// What the product's driver (gemm.cc) and its engines share. The driver cuts the product into
// blocks (gemm_blocking.h) and walks over them with threads; an engine packs panels and multiplies
// two of them into one block of C.
//
// A block's result is finished (added to earlier chunks; bias, residual, activation, stored) while
// the next block is being multiplied: AMX computes beside the vector units, so that finishing costs
// little time of its own.
//
// Internal to kernels/cpu. Owns nothing. Thread-safe: engines have no state but a thread's tiles.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/gemm.h"
#include "kernels/gemm_blocking.h"

namespace terrace::kernels::cpu {

// A or B as packing sees it: `lines` rows of A or columns of B, of which each has `k` elements.
struct PackSource {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t stride = 0;         // elements from one stored row to the next
  bool k_contiguous = false;  // a stored row is a line; else it holds one k of every line
  int64_t lines = 0;
  int64_t k = 0;
};

// Which part of a source becomes one panel's chunk; zeros where it reaches past the source.
struct PanelRange {
  int64_t first_line = 0;  // kGemmPanel lines from here
  int64_t first_k = 0;
  int64_t k = 0;  // a multiple of the arithmetic's step
};

// A block that has been multiplied and waits to be finished.
struct BlockJob {
  const float* product = nullptr;  // [32,32]; null: there is no job
  float* sums = nullptr;           // [32,32] of earlier chunks, or null
  bool last = false;               // product + sums goes to C; else sums += product
  const Gemm* gemm = nullptr;
  int64_t row = 0, column = 0;  // of C
  int64_t next_rows = 0,
          next_columns = 0;  // from here to the block that is finished after this one
  bool fetch_c = false;      // C is likely in no cache

  int64_t rows() const {
    return product == nullptr ? 0 : last ? std::min(kGemmPanel, gemm->m - row) : kGemmPanel;
  }
  int64_t columns() const { return last ? std::min(kGemmPanel, gemm->n - column) : kGemmPanel; }
};

struct BlockProduct {
  const std::byte* a = nullptr;  // a panel's chunk
  const std::byte* b = nullptr;
  int64_t k = 0;           // a multiple of the arithmetic's step
  bool stream_a = false;   // a comes from L2 and b from L1, else the other way round
  float* block = nullptr;  // [32,32], written
};

struct GemmEngine {
  GemmArithmetic arithmetic;
  void (*pack_a)(const PackSource&, const PanelRange&, std::byte* panel) = nullptr;
  void (*pack_b)(const PackSource&, const PanelRange&, std::byte* panel) = nullptr;
  // Multiplies, and meanwhile finishes `previous`, before it writes to the block.
  void (*multiply)(const BlockProduct&, const BlockJob& previous) = nullptr;
  void (*finish)(const BlockJob&) = nullptr;
  // Around all of the above on each thread.
  void (*begin_thread)() = nullptr;
  void (*end_thread)() = nullptr;
};

enum class GemmPath : uint8_t {
  kAmx,          // bf16 tiles; f32 as three bf16 parts
  kBF16Vectors,  // pairs of bf16 products on AVX-512; f32 as kVectors
  kVectors,      // f32 vectors of any CPU; bf16 and f16 operands are rounded, multiplied as f32
};

// False where this CPU or operating system lacks it.
bool HasGemmPath(GemmPath path);

// RunGemm on a chosen path. REQUIRES: HasGemmPath(path), and RunGemm's.
Status RunGemmOn(GemmPath path, const Gemm& gemm, const Context& context);

// Whether RunGemv makes this product: few rows of C, which start anew.
bool HasFewRows(const Gemm& gemm);
// REQUIRES: HasFewRows(gemm), and RunGemm's.
Status RunGemv(const Gemm& gemm, const Context& context);

// REQUIRES: AmxReady().
GemmEngine AmxGemmEngine(MatmulPrecision precision);
// Of bf16 products. REQUIRES: HasBF16Vectors().
GemmEngine BF16GemmEngine();
GemmEngine VectorGemmEngine(MatmulPrecision precision);

}  // namespace terrace::kernels::cpu
