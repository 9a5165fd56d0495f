// SPDX-License-Identifier: Apache-2.0
#include "proto/program/op_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "proto/program/head_shards.h"

namespace terrace {
namespace {

using kernels::Op;
using kernels::OpAttrs;
using testing::HasSubstr;

std::vector<Op> AllOps() {
  std::vector<Op> ops;
  for (int i = 1; i <= static_cast<int>(Op::kLastOp); ++i) ops.push_back(static_cast<Op>(i));
  return ops;
}

// Attributes of each kind with no field at its default.
const std::vector<OpAttrs>& AttrsOfEachKind() {
  static const auto* attrs = new std::vector<OpAttrs>{
      kernels::NoAttrs{},
      kernels::EmbeddingAttrs{
          .sequence = 8, .shard_rows = 5, .context = {.ranks = 2, .zigzag = true}},
      kernels::NormAttrs{.epsilon = 1e-6f, .accumulate = true},
      kernels::MatmulAttrs{.transpose_a = true,
                           .transpose_b = true,
                           .accumulate = true,
                           .epilogue = kernels::Epilogue::kGeluGrad,
                           .precision = kernels::MatmulPrecision::kBF16},
      kernels::AccumulateAttrs{.accumulate = true},
      kernels::RopeAttrs{.sequence = 10, .inverse = true, .context = {.ranks = 4, .zigzag = true}},
      kernels::AttentionAttrs{.sequence = 16,
                              .window = 4,
                              .scale = 0.125f,
                              .precision = kernels::MatmulPrecision::kBF16,
                              .terms = {.softcap = 50, .alibi_heads = 12}},
      kernels::LossAttrs{
          .chunk_rows = 32, .accumulate = true, .precision = kernels::MatmulPrecision::kBF16},
      kernels::FillAttrs{.value = 2.5f},
      kernels::ClipAttrs{.clip_grad_norm = 1.5f},
      kernels::UpdateAttrs{.beta1 = 0.8f,
                           .beta2 = 0.95f,
                           .epsilon = 1e-6f,
                           .weight_decay = 0.1f,
                           .clip_threshold = 1.5f,
                           .least_scale = 1e-3f,
                           .beta3 = 0.99f,
                           .error_epsilon = 1e-16f},
      kernels::UpdateAttrs{.beta2 = 0.95f,
                           .rounding = {.seed = 1234, .buffer = 5, .first = 1 << 20, .parts = {}}},
      kernels::AttentionBlockAttrs{
          .sequence = 16,
          .window = 4,
          .scale = 0.125f,
          .precision = kernels::MatmulPrecision::kBF16,
          .context = {.ranks = 4, .zigzag = true},
          .step = 3,
          .accumulate = true,
          .accumulate_keys = true,
          .terms = {.dropout = 0.1f, .seed = uint64_t{7} << 50, .site = 24}},
      kernels::CrossEntropyAttrs{
          .shard_rows = 7, .vocabulary = 13, .accumulate = true, .terms = {.softcap = 30}},
      kernels::ScaleAttrs{.scale = 0.5f},
      kernels::ActivationAttrs{kernels::Activation::kSilu},
      kernels::DropoutAttrs{.probability = 0.25f,
                            .seed = uint64_t{5} << 40,
                            .site = 7,
                            .row_shards = 1,
                            .column_shards = 4,
                            .accumulate = true},
      kernels::PermuteAttrs{.order = {3, 1, 0, 2}},
      kernels::BlockAttrs{
          .format = kernels::Format::kInt4Linear, .block = 32, .runs = 3, .parts = 5},
      kernels::PreferenceAttrs{
          .sequence = 24, .beta = 0.25f, .label_smoothing = 0.125f, .accumulate = true},
  };
  return *attrs;
}

TEST(OpCodecTest, EveryOpComesBackWithItsOwnAttributesAndNoOther) {
  for (Op op : AllOps()) {
    int accepted = 0;
    for (const OpAttrs& attrs : AttrsOfEachKind()) {
      v1::ComputeOp compute;
      EncodeOp(op, attrs, &compute);
      EXPECT_EQ(compute.op(), std::string(kernels::Name(op)));
      const auto decoded = DecodeOp(compute);
      if (!decoded.ok()) {
        EXPECT_EQ(decoded.status().code(), absl::StatusCode::kInvalidArgument);
        continue;
      }
      ++accepted;
      EXPECT_EQ(decoded->op, op);
      EXPECT_TRUE(decoded->attrs == attrs) << compute.DebugString();
    }
    EXPECT_EQ(accepted, 1) << kernels::Name(op);
  }
}

TEST(OpCodecTest, EveryFormatOfBlocksComesBack) {
  for (const kernels::Format format : {kernels::Format::kInt8Linear, kernels::Format::kFP8,
                                       kernels::Format::kInt4Linear, kernels::Format::kNF4}) {
    const OpAttrs attrs = kernels::BlockAttrs{.format = format, .block = 64};
    v1::ComputeOp compute;
    EncodeOp(Op::kSumBlocks, attrs, &compute);
    const auto decoded = DecodeOp(compute);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_TRUE(decoded->attrs == attrs) << compute.DebugString();
  }
}

TEST(OpCodecTest, OnlyARankKnowsItsShardAndShare) {
  const Coordinates rank = {.tensor = 2, .context = 1};
  OpAttrs embedding = kernels::EmbeddingAttrs{.shard_rows = 5, .context = {.ranks = 2}};
  ResolveRank(rank, &embedding);
  EXPECT_EQ(std::get<kernels::EmbeddingAttrs>(embedding).shard, 2);
  EXPECT_EQ(std::get<kernels::EmbeddingAttrs>(embedding).context.index, 1);
  OpAttrs dropout = kernels::DropoutAttrs{.column_shards = 4};
  ResolveRank(rank, &dropout);
  EXPECT_EQ(std::get<kernels::DropoutAttrs>(dropout).shard, 2);
  OpAttrs whole_dropout = kernels::DropoutAttrs{};
  ResolveRank(rank, &whole_dropout);
  EXPECT_EQ(std::get<kernels::DropoutAttrs>(whole_dropout).shard, 0);
  OpAttrs whole = kernels::EmbeddingAttrs{};
  ResolveRank(rank, &whole);
  EXPECT_EQ(std::get<kernels::EmbeddingAttrs>(whole), kernels::EmbeddingAttrs{});
  OpAttrs rows = kernels::CrossEntropyAttrs{.shard_rows = 5};
  ResolveRank(rank, &rows);
  EXPECT_EQ(std::get<kernels::CrossEntropyAttrs>(rows).shard, 2);
  OpAttrs block = kernels::AttentionBlockAttrs{.context = {.ranks = 2}};
  ResolveRank(rank, &block);
  EXPECT_EQ(std::get<kernels::AttentionBlockAttrs>(block).context.index, 1);
}

// Of 12 heads on two tensor-parallel ranks and three of a context. A ring leaves the heads of a
// tensor-parallel rank together; attention over whole sequences has a part of them on each rank.
TEST(OpCodecTest, ARankKnowsItsFirstHead) {
  v1::Grid grid;
  grid.set_tensor(2);
  grid.set_context(3);
  const Coordinates rank = {.tensor = 1, .context = 2};
  OpAttrs ring = kernels::AttentionBlockAttrs{.terms = {.alibi_heads = 12}};
  ResolveHeads(grid, rank, 6, &ring);
  EXPECT_EQ(std::get<kernels::AttentionBlockAttrs>(ring).terms.first_head, 6);
  EXPECT_TRUE(HasAllHeads(grid, 6, ring));
  EXPECT_FALSE(HasAllHeads(grid, 2, ring));
  OpAttrs ulysses = kernels::AttentionAttrs{.terms = {.alibi_heads = 12}};
  ResolveHeads(grid, rank, 2, &ulysses);
  EXPECT_EQ(std::get<kernels::AttentionAttrs>(ulysses).terms.first_head, 10);
  EXPECT_TRUE(HasAllHeads(grid, 2, ulysses));
  EXPECT_FALSE(HasAllHeads(grid, 6, ulysses));
  EXPECT_TRUE(HasAllHeads(grid, 5, kernels::AttentionAttrs{}));
  OpAttrs other = kernels::ScaleAttrs{};
  ResolveHeads(grid, rank, 2, &other);
  EXPECT_EQ(std::get<kernels::ScaleAttrs>(other), kernels::ScaleAttrs{});
}

TEST(OpCodecTest, ImpossibleSharesAndOrdersAreRefused) {
  const auto refused = [](Op op, const OpAttrs& attrs) {
    v1::ComputeOp compute;
    EncodeOp(op, attrs, &compute);
    return !DecodeOp(compute).ok();
  };
  EXPECT_TRUE(refused(Op::kRope,
                      kernels::RopeAttrs{.sequence = 9, .context = {.ranks = 2, .zigzag = true}}));
  EXPECT_TRUE(refused(Op::kRope, kernels::RopeAttrs{.context = {.ranks = int64_t{1} << 40}}));
  EXPECT_TRUE(refused(Op::kAttentionBlock,
                      kernels::AttentionBlockAttrs{.context = {.ranks = 2}, .step = 2}));
  EXPECT_TRUE(refused(Op::kPermute, kernels::PermuteAttrs{.order = {0, 1, 1, 3}}));
  v1::ComputeOp codes;
  EncodeOp(Op::kEncodeBlocks, kernels::BlockAttrs{}, &codes);
  EXPECT_TRUE(DecodeOp(codes).ok());
  codes.mutable_block()->set_format(v1::BLOCK_FORMAT_UNSPECIFIED);
  EXPECT_FALSE(DecodeOp(codes).ok());
}

TEST(OpCodecTest, DecodingSurvivesTheWire) {
  for (const OpAttrs& attrs : AttrsOfEachKind()) {
    v1::ComputeOp compute, received;
    EncodeOp(Op::kMatmul, attrs, &compute);
    ASSERT_TRUE(received.ParseFromString(compute.SerializeAsString()));
    EXPECT_EQ(DecodeOp(compute).ok(), DecodeOp(received).ok());
  }
}

TEST(OpCodecTest, EncodingReplacesOlderAttributes) {
  v1::ComputeOp compute;
  EncodeOp(Op::kFill, kernels::FillAttrs{.value = 1}, &compute);
  EncodeOp(Op::kAdd, kernels::NoAttrs{}, &compute);
  EXPECT_TRUE(DecodeOp(compute).ok());
}

TEST(OpCodecTest, EveryPrecisionComesBack) {
  for (const auto precision : {kernels::MatmulPrecision::kF32, kernels::MatmulPrecision::kBF16,
                               kernels::MatmulPrecision::kTF32, kernels::MatmulPrecision::kF16,
                               kernels::MatmulPrecision::kFP8}) {
    const kernels::MatmulAttrs attrs = {.precision = precision,
                                        .gradient = kernels::Fp8Gradient::kB};
    v1::ComputeOp compute;
    EncodeOp(Op::kMatmul, attrs, &compute);
    const auto decoded = DecodeOp(compute);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->attrs, OpAttrs(attrs));
  }
}

TEST(OpCodecTest, UnknownOpsAndValuesAreRefused) {
  v1::ComputeOp compute;
  compute.set_op("matmull");
  EXPECT_THAT(std::string(DecodeOp(compute).status().message()), HasSubstr("'matmull'"));
  EncodeOp(Op::kMatmul, kernels::MatmulAttrs{}, &compute);
  compute.mutable_matmul()->set_epilogue(static_cast<v1::Epilogue>(9));
  EXPECT_THAT(std::string(DecodeOp(compute).status().message()), HasSubstr("epilogue: got 9"));
  compute.mutable_matmul()->set_epilogue(v1::NONE);
  compute.mutable_matmul()->set_precision(static_cast<v1::MatmulPrecision>(5));
  EXPECT_THAT(std::string(DecodeOp(compute).status().message()), HasSubstr("precision: got 5"));
}

v1::Operand OperandOf(v1::DType dtype, const std::vector<int64_t>& shape, int64_t row_stride = 0) {
  v1::Operand operand;
  operand.set_access(v1::READ);
  operand.set_dtype(dtype);
  for (int64_t size : shape) operand.add_shape(size);
  operand.set_row_stride(row_stride);
  return operand;
}

TEST(OpCodecTest, ShapesDecodeWithTheirStride) {
  const auto dense = DecodeShape(OperandOf(v1::BF16, {6, 2, 4}));
  ASSERT_TRUE(dense.ok()) << dense.status();
  EXPECT_EQ(dense->ToString(), "bf16[6,2,4]");
  EXPECT_TRUE(dense->dense());
  const auto strided = DecodeShape(OperandOf(v1::F32, {6, 4}, 12));
  ASSERT_TRUE(strided.ok()) << strided.status();
  EXPECT_EQ(strided->row_stride, 12);
  EXPECT_TRUE(DecodeShape(v1::Operand())->absent());
}

TEST(OpCodecTest, ShapesOutsideTheLimitsAreRefused) {
  const int64_t huge = int64_t{1} << 40;
  for (const v1::Operand& operand : {
           OperandOf(v1::DTYPE_UNSPECIFIED, {4}),
           OperandOf(static_cast<v1::DType>(77), {4}),
           OperandOf(v1::F32, {}),
           OperandOf(v1::F32, {1, 1, 1, 1, 1}),
           OperandOf(v1::F32, {4, 0}),
           OperandOf(v1::F32, {-1}),
           OperandOf(v1::F32, {huge, huge}),
           OperandOf(v1::F32, {4, 8}, 7),
           OperandOf(v1::F32, {huge, 1}, huge),
       }) {
    EXPECT_EQ(DecodeShape(operand).status().code(), absl::StatusCode::kInvalidArgument)
        << operand.DebugString();
  }
}

TEST(OpCodecTest, DTypesOfBothSidesHaveTheSameValues) {
  EXPECT_EQ(EncodeDType(kernels::DType::kF32), v1::F32);
  EXPECT_EQ(EncodeDType(kernels::DType::kBF16), v1::BF16);
  EXPECT_EQ(EncodeDType(kernels::DType::kI32), v1::I32);
  EXPECT_EQ(EncodeDType(kernels::DType::kU8), v1::U8);
}

}  // namespace
}  // namespace terrace
