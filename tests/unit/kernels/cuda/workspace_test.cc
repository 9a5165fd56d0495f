// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/workspace.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/device.h"
#include "tests/conformance/op_case.h"

namespace terrace::kernels::cuda {
namespace {

TEST(GemmScratchTest, ConvertedRowsStartAtWholeSixteenBytes) {
  const GemmScratch scratch = GemmScratchSizes({.m = 3,
                                                .n = 5,
                                                .k = 7,
                                                .converts_a = true,
                                                .converts_b = true,
                                                .stages_product = true,
                                                .precision = MatmulPrecision::kBF16});
  EXPECT_EQ(scratch.a_columns, 8);
  EXPECT_EQ(scratch.b_columns, 8);
  EXPECT_EQ(scratch.product_columns, 8) << "f32: whole fours";
  EXPECT_EQ(scratch.product_rows, 3);
  EXPECT_GE(scratch.a_bytes, 3 * 8 * 2);
  EXPECT_GE(scratch.b_bytes, 7 * 8 * 2);
  EXPECT_GE(scratch.product_bytes, 3 * 8 * 4);
  EXPECT_EQ(scratch.bytes,
            scratch.a_bytes + scratch.b_bytes + scratch.product_bytes + kGemmLibraryBytes);
  EXPECT_EQ(scratch.bytes % kScratchAlignment, 0);
}

TEST(GemmScratchTest, ALargeProductIsStagedSomeRowsAtATime) {
  const GemmScratch scratch =
      GemmScratchSizes({.m = 1 << 20, .n = 151936, .k = 64, .stages_product = true});
  EXPECT_EQ(scratch.product_rows, 128);
  EXPECT_LE(scratch.product_bytes, int64_t{128} << 20);
  const GemmScratch narrow =
      GemmScratchSizes({.m = 1 << 20, .n = 1024, .k = 64, .stages_product = true});
  EXPECT_EQ(narrow.product_bytes, int64_t{64} << 20);
  const GemmScratch odd =
      GemmScratchSizes({.m = 1 << 20, .n = 50257, .k = 64, .stages_product = true});
  EXPECT_EQ(odd.product_rows, 256) << "whole tiles: the next part starts as well aligned";
}

TEST(Fp8ScratchTest, CodesLieInWholeSixteensAndTheProductIsAsWideAsTheyAre) {
  const Fp8Scratch scratch = Fp8ScratchSizes(3, 21, 45);
  EXPECT_EQ(scratch.row_bytes, 48);
  EXPECT_GE(scratch.a_bytes, 3 * 48);
  EXPECT_GE(scratch.b_bytes, 32 * 48);
  EXPECT_GE(scratch.parts_bytes, (kFp8Parts + 1) * 4) << "the factor is behind the parts";
  EXPECT_EQ(scratch.product.product_columns, 32);
  EXPECT_EQ(scratch.bytes % kScratchAlignment, 0);
  EXPECT_EQ(scratch.bytes,
            scratch.a_bytes + scratch.b_bytes + 2 * scratch.parts_bytes + scratch.product.bytes);
}

TEST(WorkspaceTest, IsSmallForEverySmallCase) {
  for (const conformance::OpCase& c : conformance::AllCases()) {
    const int64_t bytes = WorkspaceBytes(c.op, c.attrs, c.operands);
    EXPECT_GE(bytes, 0) << c.name;
    EXPECT_LT(bytes, int64_t{256} << 20) << c.name;
  }
}

TEST(FaultTest, NamesTheOpAndThePosition) {
  EXPECT_TRUE(DescribeFault(kNoFault).ok());
  const Fault fault = static_cast<Fault>(Op::kEmbedding) << kFaultPositionBits | 17;
  EXPECT_EQ(DescribeFault(fault).message,
            "embedding: the index at position 17 is outside its table");
}

}  // namespace
}  // namespace terrace::kernels::cuda
