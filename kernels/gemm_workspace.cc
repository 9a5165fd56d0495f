// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm_workspace.h"

#include <algorithm>

#include "kernels/gemm_blocking.h"

namespace terrace::kernels {
namespace {

constexpr int64_t kAlignment = 64;

int64_t RoundUp(int64_t value, int64_t multiple) { return CeilDiv(value, multiple) * multiple; }

}  // namespace

int64_t GemmWorkspaceBytes(int64_t m, int64_t n, int64_t k, MatmulPrecision precision, int threads) {
  const GemmArithmetic& amx = precision == MatmulPrecision::kBF16 ? kAmxBF16Arithmetic : kAmxSplitArithmetic;
  const int64_t bytes = std::max(GemmBlocking(amx, m, n, k).WorkspaceBytes(threads),
                                 GemmBlocking(kVectorArithmetic, m, n, k).WorkspaceBytes(threads));
  return RoundUp(bytes, kAlignment);
}

int64_t LmHeadWorkspaceBytes(int64_t rows, int64_t hidden, int64_t vocab, int64_t chunk_rows, bool grad,
                             DType activation, MatmulPrecision precision, int threads) {
  (void)activation;
  const int64_t chunk = std::min(rows, chunk_rows);
  int64_t gemm = GemmWorkspaceBytes(chunk, vocab, hidden, precision, threads);
  if (grad) {
    gemm = std::max(gemm, GemmWorkspaceBytes(chunk, hidden, vocab, precision, threads));
    gemm = std::max(gemm, GemmWorkspaceBytes(vocab, hidden, chunk, precision, threads));
  }
  return RoundUp(chunk * vocab * 4, kAlignment) + RoundUp(chunk * 8, kAlignment) + gemm;
}

}  // namespace terrace::kernels
