// Tables of positions whose first rows belong to no position: what the checker asks of their
// gradient.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/proto/check/checked_program.h"

namespace terrace {
namespace {

using testing::HasSubstr;

TEST(PositionsCheckTest, RowsThatNothingReadsNeedNoGradient) {
  for (const uint32_t zero : {0u, 1u, 3u}) {
    EXPECT_EQ(Message(CompileTiny({.family = "opt", .data_parallel = 2, .zero_stage = zero})), "")
        << "ZeRO " << zero;
  }
}

TEST(PositionsCheckTest, RowsThatAreReadNeedOne) {
  v1::Program program = CompileTiny({.family = "opt", .data_parallel = 2});
  v1::Operand* positions = First("embedding", &program)->mutable_operands(2);
  const int64_t two_rows = 2 * int64_t{positions->shape(1)} * 4;
  ASSERT_GE(positions->offset(), two_rows);
  positions->set_offset(positions->offset() - two_rows);
  EXPECT_THAT(Message(program), HasSubstr("the gradient of 'model.decoder.embed_positions.weight', "
                                          "to which nothing of this stage was added"));
}

}  // namespace
}  // namespace terrace
