// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "kernels/op.h"

namespace terrace::kernels {
namespace {

std::vector<Op> AllOps() {
  std::vector<Op> ops;
  for (int op = 1; op <= static_cast<int>(Op::kLastOp); ++op) ops.push_back(static_cast<Op>(op));
  return ops;
}

TEST(OpTableTest, NamesAreUniqueAndParseBack) {
  std::set<std::string_view> names;
  for (Op op : AllOps()) {
    EXPECT_TRUE(names.insert(Name(op)).second) << Name(op);
    Op parsed = Op::kCast;
    ASSERT_TRUE(ParseOp(Name(op), &parsed)) << Name(op);
    EXPECT_EQ(parsed, op);
  }
  EXPECT_EQ(Name(Op::kLayerNormGrad), "layer_norm_grad");
  EXPECT_EQ(Name(Op::kLmHeadLossGrad), "lm_head_loss_grad");
}

TEST(OpTableTest, UnknownNamesAndNumbersAreRefused) {
  Op op = Op::kCast;
  EXPECT_FALSE(ParseOp("layernorm", &op));
  EXPECT_FALSE(ParseOp("", &op));
  EXPECT_EQ(op, Op::kCast);
  EXPECT_EQ(Name(static_cast<Op>(0)), "unknown");
  EXPECT_EQ(OperandCount(static_cast<Op>(200)), 0);
}

TEST(OpTableTest, OperandsAreThoseOfTheHeader) {
  EXPECT_EQ(OperandCount(Op::kMatmul), 6);
  EXPECT_EQ(OperandName(Op::kMatmul, 5), "aux");
  EXPECT_TRUE(OperandOptional(Op::kMatmul, 3));
  EXPECT_FALSE(OperandOptional(Op::kMatmul, 2));
  EXPECT_EQ(OperandCount(Op::kAttentionGrad), 11);
  EXPECT_EQ(OperandName(Op::kAttentionGrad, 5), "do");
  EXPECT_EQ(OperandCount(Op::kFill), 1);
  EXPECT_EQ(OperandCount(Op::kAttentionBlockGrad), 11);
  EXPECT_EQ(OperandName(Op::kAddResidual, 2), "bias");
  EXPECT_TRUE(OperandOptional(Op::kAddResidual, 1));
}

TEST(OpTableTest, EveryOpHasAnOutputAndDistinctOperandNames) {
  for (Op op : AllOps()) {
    std::set<std::string_view> names;
    bool has_output = false;
    for (int i = 0; i < OperandCount(op); ++i) {
      EXPECT_TRUE(names.insert(OperandName(op, i)).second) << Name(op);
      const Access access = OperandAccess(op, NoAttrs{}, i);
      has_output |= access == Access::kWrite || access == Access::kUpdate;
    }
    EXPECT_TRUE(has_output) << Name(op);
  }
}

TEST(OpTableTest, AccumulateTurnsWritesIntoUpdates) {
  constexpr int kC = 2, kDweight = 7;
  EXPECT_EQ(OperandAccess(Op::kMatmul, MatmulAttrs{}, kC), Access::kWrite);
  EXPECT_EQ(OperandAccess(Op::kMatmul, MatmulAttrs{.accumulate = true}, kC), Access::kUpdate);
  EXPECT_EQ(OperandAccess(Op::kLayerNormGrad, NormAttrs{}, kDweight), Access::kWrite);
  EXPECT_EQ(OperandAccess(Op::kLayerNormGrad, NormAttrs{.accumulate = true}, kDweight),
            Access::kUpdate);
}

TEST(OpTableTest, GradientsOfKeysAccumulateByThemselves) {
  constexpr int kDq = 6, kDk = 7, kDv = 8;
  const AttentionBlockAttrs keys = {.accumulate_keys = true}, queries = {.accumulate = true};
  for (int key : {kDk, kDv}) {
    EXPECT_EQ(OperandAccess(Op::kAttentionBlockGrad, keys, key), Access::kUpdate);
    EXPECT_EQ(OperandAccess(Op::kAttentionBlockGrad, queries, key), Access::kWrite);
  }
  EXPECT_EQ(OperandAccess(Op::kAttentionBlockGrad, keys, kDq), Access::kWrite);
  EXPECT_EQ(OperandAccess(Op::kAttentionBlockGrad, queries, kDq), Access::kUpdate);
  EXPECT_EQ(OperandAccess(Op::kAttentionBlock, queries, 3), Access::kUpdate);
  EXPECT_EQ(OperandAccess(Op::kAttentionBlock, queries, 4), Access::kUpdate);
}

TEST(OpTableTest, TheEpilogueSaysWhatAuxIs) {
  constexpr int kAux = 5;
  const auto access = [](Epilogue epilogue) {
    return OperandAccess(Op::kMatmul, MatmulAttrs{.epilogue = epilogue}, kAux);
  };
  EXPECT_EQ(access(Epilogue::kNone), Access::kNone);
  EXPECT_EQ(access(Epilogue::kGelu), Access::kWrite);
  EXPECT_EQ(access(Epilogue::kGeluGrad), Access::kRead);
}

TEST(TensorShapeTest, PrintsTypeSizesAndStride) {
  TensorShape shape = {.dtype = DType::kBF16, .dims = 2, .size = {2048, 384}, .row_stride = 384};
  EXPECT_EQ(shape.ToString(), "bf16[2048,384]");
  shape.row_stride = 1152;
  EXPECT_EQ(shape.ToString(), "bf16[2048,384]/1152");
  EXPECT_EQ(TensorShape().ToString(), "absent");
}

}  // namespace
}  // namespace terrace::kernels
