// The matrix product that the CPU kernels share: kMatmul, the LM head and whoever multiplies blocks
// inside a larger op.
//
// C[M,N] = op(A) op(B) with the epilogues of op.h. On AMX tiles where there are any (bf16; f32 as
// three bf16 parts an element, with errors below those of f32 arithmetic), else on the f32 vectors
// of any CPU, which f16 products and those of few rows (gemv.cc) take always. Elements are
// converted while blocks are packed, so a bf16 product of f32 weights needs no bf16 copy of them.
// Bitwise deterministic, whatever the number of threads. Thread-safe: scratch comes from the
// caller.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernel.h"
#include "kernels/op.h"

namespace terrace::kernels::cpu {

struct Matrix {
  void* data = nullptr;
  DType dtype = DType::kF32;  // kF32, kBF16 or kF16
  int64_t row_stride = 0;     // elements
};

struct Gemm {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false;  // a is stored [k,m]
  bool transpose_b = false;  // b is stored [n,k]
  bool accumulate = false;
  Epilogue epilogue = Epilogue::kNone;
  MatmulPrecision precision = MatmulPrecision::kF32;
  float scale = 1;  // of op(A) op(B), before all else
  Matrix a, b, c;
  const float* bias = nullptr;  // [n] or null
  Matrix residual;              // data null: none
  Matrix aux;                   // data null: none
};

// Once per process, before the first RunGemm: asks the operating system for AMX state where there
// is AMX. `threads` is the largest number a context will carry.
Status PrepareGemm(int threads);

// Runs with context.threads threads. REQUIRES: context.workspace_bytes >= GemmWorkspaceBytes(...)
// (kernels/gemm_workspace.h).
Status RunGemm(const Gemm& gemm, const Context& context);

}  // namespace terrace::kernels::cpu
