// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm_workspace.h"

#include <gtest/gtest.h>

#include "kernels/gemm_blocking.h"

namespace terrace::kernels {
namespace {

TEST(GemmWorkspaceTest, EveryArithmeticFits) {
  for (const int64_t m : {1, 100, 2048}) {
    for (const int64_t n : {1, 384, 50257}) {
      for (const int64_t k : {1, 768, 5000}) {
        for (const int threads : {1, 2, 64}) {
          const int64_t bf16 = GemmWorkspaceBytes(m, n, k, MatmulPrecision::kBF16, threads);
          const int64_t f32 = GemmWorkspaceBytes(m, n, k, MatmulPrecision::kF32, threads);
          EXPECT_GE(bf16,
                    GemmBlocking(kAmxBF16Arithmetic, m, n, k, threads).WorkspaceBytes(threads));
          EXPECT_GE(bf16,
                    GemmBlocking(kVectorArithmetic, m, n, k, threads).WorkspaceBytes(threads));
          EXPECT_GE(f32,
                    GemmBlocking(kAmxSplitArithmetic, m, n, k, threads).WorkspaceBytes(threads));
          EXPECT_GE(f32, GemmBlocking(kVectorArithmetic, m, n, k, threads).WorkspaceBytes(threads));
          EXPECT_EQ(bf16 % 64, 0);
          EXPECT_EQ(f32 % 64, 0);
        }
      }
    }
  }
}

TEST(GemmWorkspaceTest, CutsOfKDoNotDependOnOtherSizesOrThreads) {
  for (const int64_t k : {1, 31, 384, 385, 1000, 3072, 50257}) {
    const GemmBlocking one(kAmxBF16Arithmetic, 32, 32, k, 1);
    for (const int64_t m : {1, 2048}) {
      for (const int threads : {1, 2, 64}) {
        const GemmBlocking other(kAmxBF16Arithmetic, m, 768, k, threads);
        EXPECT_EQ(other.chunk, one.chunk);
        EXPECT_EQ(other.chunks, one.chunks);
      }
    }
    EXPECT_GE(one.chunk * one.chunks, k);
    EXPECT_LE(one.chunk, kAmxBF16Arithmetic.max_chunk);
  }
}

TEST(GemmWorkspaceTest, ALongSumPacksOnlyAFewChunksAtATime) {
  const int64_t bytes = GemmWorkspaceBytes(1024, 768, 50257, MatmulPrecision::kBF16, 2);
  EXPECT_LT(bytes, 768 * 50257 * 2 / 2);  // half of one packed operand
}

TEST(LmHeadWorkspaceTest, HoldsOneChunkOfLogitsHoweverManyRows) {
  const auto bytes = [](int64_t rows, int64_t chunk_rows, MatmulPrecision precision) {
    return LmHeadWorkspaceBytes(rows, 768, 50257, chunk_rows, true, DType::kF32, precision, 2);
  };
  EXPECT_EQ(bytes(1024, 256, MatmulPrecision::kF32), bytes(4096, 256, MatmulPrecision::kF32));
  EXPECT_GT(bytes(1024, 512, MatmulPrecision::kF32),
            bytes(1024, 256, MatmulPrecision::kF32) + 256 * 50257 * 4 / 2);
  EXPECT_LT(bytes(1024, 512, MatmulPrecision::kBF16), bytes(1024, 512, MatmulPrecision::kF32));
  EXPECT_GE(bytes(1024, 512, MatmulPrecision::kBF16), 512 * 50257 * 2);
}

}  // namespace
}  // namespace terrace::kernels
