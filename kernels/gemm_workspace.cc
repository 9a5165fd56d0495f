// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm_workspace.h"

#include <algorithm>

#include "kernels/gemm_blocking.h"
#include "kernels/lm_head_scratch.h"

namespace terrace::kernels {
namespace {

constexpr int64_t kAlignment = 64;

int64_t RoundUp(int64_t value, int64_t multiple) { return CeilDiv(value, multiple) * multiple; }

// For the products of one chunk: logits, and with `grad` the gradients of hidden and weight.
int64_t ChunkProductsBytes(int64_t rows, int64_t hidden, int64_t vocab, bool grad,
                           MatmulPrecision precision, int threads) {
  const int64_t logits = GemmWorkspaceBytes(rows, vocab, hidden, precision, threads);
  if (!grad) return logits;
  return std::max({logits, GemmWorkspaceBytes(rows, hidden, vocab, precision, threads),
                   GemmWorkspaceBytes(vocab, hidden, rows, precision, threads)});
}

}  // namespace

int64_t GemmWorkspaceBytes(int64_t m, int64_t n, int64_t k, MatmulPrecision precision,
                           int threads) {
  const int64_t few_rows = m <= kGemvRows ? GemvFactorRows(m) * k * SizeOf(DType::kF32) : 0;
  const int64_t vectors =
      std::max(few_rows, GemmBlocking(kVectorArithmetic, m, n, k, threads).WorkspaceBytes(threads));
  if (precision == MatmulPrecision::kF16) return RoundUp(vectors, kAlignment);
  const GemmArithmetic& amx =
      precision == MatmulPrecision::kBF16 ? kAmxBF16Arithmetic : kAmxSplitArithmetic;
  const int64_t bytes =
      std::max(GemmBlocking(amx, m, n, k, threads).WorkspaceBytes(threads), vectors);
  return RoundUp(bytes, kAlignment);
}

Fp8GemmScratch::Fp8GemmScratch(int64_t m, int64_t n, int64_t k, int threads)
    : product_bytes(GemmWorkspaceBytes(m, n, k, MatmulPrecision::kBF16, threads)),
      a_bytes(RoundUp(m * k * SizeOf(DType::kBF16), kAlignment)),
      b_bytes(RoundUp(n * k * SizeOf(DType::kBF16), kAlignment)) {}

int64_t LmHeadWorkspaceBytes(int64_t rows, int64_t hidden, int64_t vocab, int64_t chunk_rows,
                             bool grad, DType /*activation*/, MatmulPrecision precision,
                             int threads) {
  const int64_t chunk = std::min(rows, chunk_rows);
  // The last chunk may be shorter, and its products cut differently.
  const int64_t last = rows % chunk == 0 ? chunk : rows % chunk;
  return LmHeadScratch(chunk, vocab, precision, threads).bytes +
         std::max(ChunkProductsBytes(chunk, hidden, vocab, grad, precision, threads),
                  ChunkProductsBytes(last, hidden, vocab, grad, precision, threads));
}

}  // namespace terrace::kernels
