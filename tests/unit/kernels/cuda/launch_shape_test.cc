// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/launch_shape.h"

#include <gtest/gtest.h>

#include <limits>

namespace terrace::kernels::cuda {
namespace {

constexpr int64_t kHuge = int64_t{1} << 56;  // no operand has as many elements

void ExpectStarts(const LaunchShape& shape) {
  EXPECT_GE(shape.grid_x, 1);
  EXPECT_LE(shape.grid_x, kMaxGridX);
  EXPECT_GE(shape.grid_y, 1);
  EXPECT_LE(shape.grid_y, kMaxGridY);
  EXPECT_GE(shape.threads, kWarp);
  EXPECT_LE(shape.threads, 1024);
  EXPECT_EQ(shape.threads % kWarp, 0) << "sums over a block take whole warps";
}

TEST(LaunchShapeTest, EveryGridIsOneThatAGpuStarts) {
  const int64_t sizes[] = {1,
                           7,
                           8,
                           9,
                           255,
                           256,
                           257,
                           2048,
                           2049,
                           65535,
                           65536,
                           1 << 20,
                           std::numeric_limits<int32_t>::max(),
                           int64_t{1} << 28};
  for (int64_t rows : sizes) {
    for (int64_t columns : sizes) {
      SCOPED_TRACE(testing::Message() << rows << " x " << columns);
      ExpectStarts(ElementShape(rows, columns));
      ExpectStarts(RowShape(rows, columns));
      ExpectStarts(ColumnShape(rows, columns));
    }
  }
  ExpectStarts(ElementShape(1, kHuge));
  ExpectStarts(ElementShape(kHuge, 1));
  ExpectStarts(RowShape(kHuge, 1));
  ExpectStarts(ColumnShape(kHuge, 1));
  ExpectStarts(ColumnShape(1, kHuge));
}

TEST(LaunchShapeTest, ElementsHaveAThreadForEachPackOfEachRow) {
  EXPECT_EQ(ElementShape(1, 1).grid_x, 1);
  EXPECT_EQ(ElementShape(1, 2048).grid_x, 1) << "256 threads of 8";
  EXPECT_EQ(ElementShape(1, 2049).grid_x, 2);
  EXPECT_EQ(ElementShape(256, 1).grid_x, 1) << "rows share no pack";
  EXPECT_EQ(ElementShape(257, 1).grid_x, 2);
}

TEST(LaunchShapeTest, BlocksOfRowsCoverAllRowsOnce) {
  for (int64_t rows : {1, 63, 64, 65, 128, 16384, 16385, 20000, 1 << 24}) {
    const ColumnCut cut = CutRows(rows);
    EXPECT_GE(cut.blocks * cut.rows_per_block, rows) << rows;
    EXPECT_LT((cut.blocks - 1) * cut.rows_per_block, rows) << rows << ": no block is empty";
    EXPECT_LE(cut.blocks, 256) << rows;
  }
}

}  // namespace
}  // namespace terrace::kernels::cuda
