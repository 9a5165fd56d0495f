// What the checker asks of codes: that they are decoded with the scales that were made with them,
// in the format in which they were made, and those of weights as they were gathered; of codes of
// gradients that every rank's are added up once, part by part.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/proto/check/checked_program.h"
#include "tests/unit/proto/check/mutate.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class CodesCheckTest : public testing::TestWithParam<TinyJob> {
 protected:
  void SetUp() override {
    ASSERT_EQ(CheckProgram(program_), absl::OkStatus());
    for (v1::Sequence& sequence : *program_.mutable_sequences()) {
      if (sequence.name() != "train") continue;
      for (v1::Instruction& i : *sequence.mutable_instructions()) {
        if (i.compute().op() == "decode_blocks") decodes_.push_back(&i);
      }
    }
    ASSERT_GT(decodes_.size(), 3u);
  }

  v1::Program program_ = CompileTiny(GetParam());
  std::vector<v1::Instruction*> decodes_;
};

// Many of these break what memory allows as well; the rule is told where nothing else is wrong.
TEST_P(CodesCheckTest, ScalesOfOtherCodes) {
  int told = 0;
  for (v1::Instruction* decode : decodes_) {
    for (const v1::Instruction* other : decodes_) {
      const v1::Operand own = decode->operands(1);
      if (other->operands(1).shape(0) != own.shape(0) ||
          other->operands(1).buffer() == own.buffer()) {
        continue;
      }
      *decode->mutable_operands(1) = other->operands(1);
      const std::string message = Message(program_);
      EXPECT_NE(message, "") << decode->text() << " with the scales of " << other->text();
      told +=
          message.find("decodes codes with scales that were not made with them") != message.npos;
      *decode->mutable_operands(1) = own;
    }
  }
  EXPECT_GT(told, 0);
}

TEST_P(CodesCheckTest, AnotherFormat) {
  v1::BlockAttrs* attrs = decodes_[decodes_.size() / 2]->mutable_compute()->mutable_block();
  attrs->set_format(attrs->format() == v1::FP8_E4M3 ? v1::INT8_LINEAR : v1::FP8_E4M3);
  EXPECT_THAT(Message(program_), HasSubstr("decodes codes as those of another format"));
}

class CodedSumsCheckTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(CheckProgram(program_), absl::OkStatus());
    for (v1::Instruction& i : *Train(&program_)->mutable_instructions()) {
      if (i.compute().op() == "sum_blocks") sums_.push_back(&i);
      if (i.collective().kind() == v1::ALL_TO_ALL) exchanges_.push_back(&i);
    }
    ASSERT_GT(sums_.size(), 3u);
    ASSERT_EQ(exchanges_.size(), 2 * sums_.size()) << "codes and scales";
  }

  v1::Program program_ = CompileTiny({.family = "llama",
                                      .precision = "bf16",
                                      .data_parallel = 2,
                                      .micro_batches = 2,
                                      .zero_stage = 2,
                                      .sizes = {.layers = 4},
                                      .reduce_format = "int8"});
  std::vector<v1::Instruction*> sums_, exchanges_;
};

TEST_F(CodedSumsCheckTest, ScalesOfOtherCodes) {
  int told = 0;
  for (v1::Instruction* sum : sums_) {
    for (const v1::Instruction* other : sums_) {
      const v1::Operand own = sum->operands(1);
      if (other->operands(1).shape(1) != own.shape(1) ||
          other->operands(1).buffer() == own.buffer()) {
        continue;
      }
      *sum->mutable_operands(1) = other->operands(1);
      const std::string message = Message(program_);
      EXPECT_NE(message, "") << sum->text() << " with the scales of " << other->text();
      told += message.find("sums codes with scales that were not made with them") != message.npos;
      *sum->mutable_operands(1) = own;
    }
  }
  EXPECT_GT(told, 0);
}

TEST_F(CodedSumsCheckTest, AnotherFormat) {
  sums_[1]->mutable_compute()->mutable_block()->set_format(v1::FP8_E4M3);
  EXPECT_THAT(Message(program_), HasSubstr("sums codes as those of another format"));
}

// All of them are of this rank then: what the others have is missing.
TEST_F(CodedSumsCheckTest, OwnCodesInThePlaceOfOthers) {
  int told = 0;
  for (v1::Instruction* exchange : exchanges_) {
    const v1::Instruction whole = *exchange;
    for (v1::Instruction* sum : sums_) {
      for (const int operand : {0, 1}) {
        if (sum->operands(operand).buffer() != whole.operands(1).buffer()) continue;
        const v1::Operand others = sum->operands(operand);
        sum->mutable_operands(operand)->set_buffer(whole.operands(0).buffer());
        sum->mutable_operands(operand)->set_offset(whole.operands(0).offset());
        const std::string message = Message(program_);
        EXPECT_NE(message, "") << sum->text();
        told += message.find("sums what is no exchanged codes of gradients") != message.npos ||
                message.find("sums codes with scales") != message.npos;
        *sum->mutable_operands(operand) = others;
      }
    }
  }
  EXPECT_GT(told, 0);
}

// As many elements, but of other parts than ranks have exchanged.
TEST_F(CodedSumsCheckTest, OtherParts) {
  for (v1::Instruction* sum : sums_) {
    const v1::Instruction whole = *sum;
    const int64_t parts = whole.operands(0).shape(0), elements = whole.operands(0).shape(1);
    if (elements % (2 * 128) != 0) continue;
    for (const int operand : {0, 1}) {
      v1::Operand* codes = sum->mutable_operands(operand);
      codes->set_shape(0, 2 * parts);
      codes->set_shape(1, codes->shape(1) / 2);
    }
    sum->mutable_operands(2)->set_shape(0, elements / 2);
    EXPECT_NE(Message(program_), "") << sum->text();
    *sum = whole;
  }
}

// A rank has its own part of what all have. Exchanged again, everybody has what it had before, in
// the place of what the others have.
TEST_F(CodedSumsCheckTest, CodesThatAreExchangedTwice) {
  int told = 0;
  for (int i = 0; i < Train(&program_)->instructions_size(); ++i) {
    if (Train(&program_)->instructions(i).collective().kind() != v1::ALL_TO_ALL) continue;
    v1::Program program = program_;
    RepeatInstruction(i, Train(&program));
    v1::Instruction* again = Train(&program)->mutable_instructions(i + 1);
    const v1::Operand own = again->operands(0), others = again->operands(1);
    for (const int operand : {0, 1}) {
      const v1::Operand& other = operand == 0 ? others : own;
      again->mutable_operands(operand)->set_buffer(other.buffer());
      again->mutable_operands(operand)->set_offset(other.offset());
    }
    for (v1::Instruction& sum : *Train(&program)->mutable_instructions()) {
      if (sum.compute().op() != "sum_blocks") continue;
      for (v1::Operand& operand : *sum.mutable_operands()) {
        if (operand.buffer() != others.buffer()) continue;
        operand.set_buffer(own.buffer());
        operand.set_offset(own.offset());
      }
    }
    const std::string message = Message(program);
    EXPECT_NE(message, "") << again->text();
    told += message.find("exchanges codes that were not made together") != message.npos;
  }
  EXPECT_GT(told, 0);
}

// What one rank has got is of its own part.
TEST_F(CodedSumsCheckTest, PartsThatOneRankHasGot) {
  int told = 0;
  for (int i = 0; i < Train(&program_)->instructions_size(); ++i) {
    if (Train(&program_)->instructions(i).collective().kind() != v1::ALL_TO_ALL) continue;
    v1::Program program = program_;
    RepeatInstruction(i, Train(&program));
    v1::Instruction* spread = Train(&program)->mutable_instructions(i + 1);
    spread->mutable_collective()->set_kind(v1::BROADCAST);
    spread->mutable_operands()->DeleteSubrange(0, 1);
    spread->mutable_operands(0)->set_access(v1::UPDATE);
    const std::string message = Message(program);
    EXPECT_NE(message, "") << spread->text();
    told += message.find("collects parts that are not added up") != message.npos;
  }
  EXPECT_GT(told, 0);
}

// The scale of a block is sent to one rank alone.
TEST_F(CodedSumsCheckTest, BlocksThatLieInTwoParts) {
  // Of 960 codes to a part, of which no more than 64 make whole blocks.
  v1::Program program = CompileTiny({.family = "llama",
                                     .precision = "bf16",
                                     .data_parallel = 2,
                                     .zero_stage = 2,
                                     .sizes = {.vocabulary = 60},
                                     .reduce_format = "int8"});
  ASSERT_EQ(Message(program), "");
  constexpr int64_t kPart = 960, kBlock = 256, kScales = 4;
  std::set<uint32_t> encoded;
  int sums = 0;
  for (v1::Instruction& i : *Train(&program)->mutable_instructions()) {
    const std::string op = i.compute().op();
    if (op == "encode_blocks" && i.operands(1).shape(0) == 2 * kPart) {
      encoded.insert(i.operands(2).buffer());
      i.mutable_operands(2)->set_shape(0, 2 * kScales);
    } else if (i.collective().kind() == v1::ALL_TO_ALL &&
               encoded.contains(i.operands(0).buffer())) {
      encoded.insert(i.operands(1).buffer());
      for (v1::Operand& scales : *i.mutable_operands()) scales.set_shape(0, 2 * kScales);
    } else if (op == "sum_blocks" && encoded.contains(i.operands(1).buffer())) {
      i.mutable_operands(1)->set_shape(1, kScales);
      ++sums;
    } else {
      continue;
    }
    if (i.has_compute()) i.mutable_compute()->mutable_block()->set_block(kBlock);
  }
  EXPECT_GT(sums, 0);
  EXPECT_THAT(Message(program), HasSubstr("sums codes in blocks that lie in two parts"));
}

// What ranks have exchanged is no gradient yet.
TEST_F(CodedSumsCheckTest, CodesThatAreDecodedInThePlaceOfTheSum) {
  int told = 0;
  for (v1::Instruction* sum : sums_) {
    const v1::Instruction whole = *sum;
    const int64_t elements = whole.operands(2).shape(0);
    const int64_t blocks = whole.operands(1).shape(1);
    sum->mutable_compute()->set_op("decode_blocks");
    for (const auto& [operand, count] : {std::pair(0, elements), std::pair(1, blocks)}) {
      sum->mutable_operands(operand)->clear_shape();
      sum->mutable_operands(operand)->add_shape(count);
    }
    const std::string message = Message(program_);
    EXPECT_NE(message, "") << whole.text();
    told += message.find("decodes parts of several ranks as one") != message.npos;
    *sum = whole;
  }
  EXPECT_GT(told, 0);
}

// Blocks of two of four ranks.
class TwoLevelsCheckTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_EQ(CheckProgram(program_), absl::OkStatus());
    for (v1::Group& group : *program_.mutable_groups()) {
      if (group.shard_block() > 0) near_ = &group;
      if (group.shard_stride() > 0) far_ = &group;
    }
    ASSERT_NE(near_, nullptr);
    ASSERT_NE(far_, nullptr);
  }

  v1::Program program_ = CompileTiny({.family = "llama",
                                      .precision = "bf16",
                                      .data_parallel = 4,
                                      .micro_batches = 2,
                                      .zero_stage = 2,
                                      .sizes = {.layers = 4},
                                      .reduce_format = GetParam(),
                                      .reduce_block = 2});
  v1::Group* near_ = nullptr;
  v1::Group* far_ = nullptr;
};

// Those of a block first: what they have not summed yet goes nowhere else.
TEST_P(TwoLevelsCheckTest, TheOtherLevelFirst) {
  const uint32_t block = near_->shard_block();
  near_->clear_shard_block();
  near_->set_shard_stride(block);
  far_->clear_shard_stride();
  far_->set_shard_block(block);
  EXPECT_THAT(Message(program_), HasSubstr("exchanges parts of sums with ranks that have no use "
                                           "for them"));
}

TEST_P(TwoLevelsCheckTest, SumsOfABlockExchangedInsideOfIt) {
  far_->set_shard_block(near_->shard_block());
  far_->clear_shard_stride();
  EXPECT_THAT(Message(program_), HasSubstr("exchanges parts of sums with ranks that have no use "
                                           "for them"));
}

// The part that a rank adds up would be that of another one.
TEST_P(TwoLevelsCheckTest, PartsInTheOrderOfTheRanks) {
  for (v1::Instruction& i : *Train(&program_)->mutable_instructions()) {
    if (i.compute().block().runs() == 0) continue;
    i.mutable_compute()->mutable_block()->clear_runs();
    i.mutable_compute()->mutable_block()->clear_parts();
  }
  EXPECT_THAT(Message(program_), HasSubstr("made as the gradient of other weights"));
}

// All other kinds of communication are among all ranks of an axis.
TEST_P(TwoLevelsCheckTest, NothingElseIsAmongSomeOfTheRanks) {
  int told = 0;
  for (v1::Group& group : *program_.mutable_groups()) {
    if (&group == near_ || &group == far_) continue;
    const v1::Group whole = group;
    group.set_shard_block(2);
    told += Message(program_).find("only ALL_TO_ALL may be among some ranks of DATA_SHARD") !=
            std::string::npos;
    group = whole;
  }
  EXPECT_GT(told, 0);
}

INSTANTIATE_TEST_SUITE_P(Codes, TwoLevelsCheckTest, testing::Values("int8", "int4"));

// What codes were not worth is kept for the gradient of the same weights, on each rank its own.
class ResidualsCheckTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(CheckProgram(program_), absl::OkStatus());
    for (v1::Instruction& i : *Train(&program_)->mutable_instructions()) {
      if (i.compute().op() == "encode_blocks" && i.operands_size() > kResidual &&
          i.operands(kResidual).access() == v1::UPDATE) {
        encodes_.push_back(&i);
      }
    }
    ASSERT_GT(encodes_.size(), 3u);
    for (v1::StateRange& range : *program_.mutable_state()) {
      if (range.kind() == v1::RESIDUAL) residuals_.push_back(&range);
    }
    ASSERT_GT(residuals_.size(), 3u);
  }

  static constexpr int kResidual = 3;
  v1::Program program_ = CompileTiny({.family = "llama",
                                      .precision = "bf16",
                                      .data_parallel = 2,
                                      .micro_batches = 2,
                                      .tensor_parallel = 2,
                                      .zero_stage = 2,
                                      .sizes = {.layers = 4},
                                      .reduce_format = "int4",
                                      .residual_format = "bf16"});
  std::vector<v1::Instruction*> encodes_;
  std::vector<v1::StateRange*> residuals_;
};

TEST_F(ResidualsCheckTest, ThatOfOtherWeights) {
  int told = 0;
  for (v1::Instruction* encode : encodes_) {
    const v1::Operand own = encode->operands(kResidual);
    for (const v1::Instruction* other : encodes_) {
      const v1::Operand& residual = other->operands(kResidual);
      if (residual.buffer() == own.buffer() || residual.shape(0) != own.shape(0)) continue;
      *encode->mutable_operands(kResidual) = residual;
      const std::string message = Message(program_);
      EXPECT_NE(message, "") << encode->text() << " with the residual of " << other->text();
      told += message.find("made as the gradient of other weights") != message.npos;
      *encode->mutable_operands(kResidual) = own;
    }
  }
  EXPECT_GT(told, 0);
}

TEST_F(ResidualsCheckTest, NoneIsKept) {
  const uint32_t buffer = encodes_[0]->operands(kResidual).buffer();
  for (v1::Instruction* encode : encodes_) {
    if (encode->operands(kResidual).buffer() == buffer)
      *encode->mutable_operands(kResidual) = v1::Operand();
  }
  EXPECT_THAT(Message(program_), HasSubstr("is kept by no encode_blocks"));
}

// It would be lost when the step ends.
TEST_F(ResidualsCheckTest, ThatIsNoState) {
  const uint32_t buffer = encodes_[0]->operands(kResidual).buffer();
  google::protobuf::RepeatedPtrField<v1::StateRange> others;
  for (const v1::StateRange& range : program_.state()) {
    if (range.buffer() != buffer) *others.Add() = range;
  }
  others.Swap(program_.mutable_state());
  EXPECT_NE(Message(program_), "");
}

TEST_F(ResidualsCheckTest, OfAllRanksTogether) {
  residuals_[0]->set_by_rank(false);
  EXPECT_THAT(Message(program_), HasSubstr("is not of each rank, which residuals are"));
}

TEST_F(ResidualsCheckTest, OfHalfARank) {
  residuals_[0]->set_shape(0, residuals_[0]->shape(0) + 1);
  EXPECT_THAT(Message(program_),
              HasSubstr("must be that of a matrix times the 2 ranks of CONTEXT and DATA_SHARD"));
}

TEST_F(ResidualsCheckTest, OfAnotherTypeThanCheckpointsHave) {
  for (v1::Initializer& initializer : *program_.mutable_initializers())
    initializer.set_residual(v1::F32);
  EXPECT_THAT(Message(program_), HasSubstr("type BF16 is not what its initializer says"));
}

// Checkpoints would miss what initializers tell of, or have no room for what is there.
TEST_F(ResidualsCheckTest, OfWhichInitializersTellSomethingElse) {
  v1::Initializer* initializer = nullptr;
  for (v1::Initializer& i : *program_.mutable_initializers()) {
    if (i.tensor() == residuals_[0]->tensor()) initializer = &i;
  }
  ASSERT_NE(initializer, nullptr);
  const v1::Initializer whole = *initializer;
  initializer->clear_residual();
  EXPECT_THAT(Message(program_), HasSubstr("of its residual must be F32 or BF16"));
  initializer->set_residual(v1::U8);
  EXPECT_THAT(Message(program_), HasSubstr("type U8 of its residual must be F32 or BF16"));
  *initializer = whole;
  std::swap(*initializer->mutable_shape()->Mutable(0), *initializer->mutable_shape()->Mutable(1));
  EXPECT_THAT(Message(program_), HasSubstr("its shape is not that of its initializer"));
  const int64_t elements = whole.shape(0) * whole.shape(1);
  initializer->clear_shape();
  initializer->add_shape(elements);
  EXPECT_THAT(Message(program_), HasSubstr("only a matrix has a residual"));
  *initializer = whole;
  EXPECT_EQ(Message(program_), "");
  for (v1::Initializer& norm : *program_.mutable_initializers()) {
    if (norm.shape_size() == 1) norm.set_residual(v1::BF16);
  }
  EXPECT_THAT(Message(program_), HasSubstr("only a matrix has a residual"));
}

TEST_F(ResidualsCheckTest, OfAMatrixThatHasNone) {
  v1::Program program = CompileTiny({.precision = "bf16", .data_parallel = 2, .zero_stage = 2});
  ASSERT_EQ(Message(program), "");
  for (v1::Initializer& i : *program.mutable_initializers()) {
    if (i.shape_size() == 2) i.set_residual(v1::F32);
  }
  EXPECT_THAT(Message(program), HasSubstr("the state has no residual of it"));
}

TEST_F(ResidualsCheckTest, WeightsAsAResidual) {
  residuals_[0]->set_kind(v1::WEIGHT);
  EXPECT_NE(Message(program_), "");
}

// Of all kinds of layouts the compiler's own pass.
TEST(ResidualsTest, WhatTheCompilerMakesIsTaken) {
  for (const char* family : {"gpt2", "qwen3"}) {
    for (const uint32_t zero : {1, 2, 3}) {
      for (const uint32_t pipeline : {1, 2}) {
        for (const uint32_t context : {1, 2}) {
          const TinyJob job = {.family = family,
                               .precision = "bf16",
                               .data_parallel = 4,
                               .micro_batches = 3,
                               .pipeline_parallel = pipeline,
                               .context_parallel = context,
                               .zero_stage = zero,
                               .sizes = {.layers = 4},
                               .reduce_format = "int8",
                               .reduce_block = context,
                               .residual_format = "f32"};
          for (const v1::Program& program : CompileStages(job)) {
            EXPECT_EQ(CheckProgram(program), absl::OkStatus()) << Describe(job);
          }
        }
      }
    }
  }
}

TinyJob Deep(const char* activation, const char* gather, uint32_t ranks) {
  return {.family = "llama",
          .precision = "bf16",
          .data_parallel = ranks,
          .zero_stage = ranks > 1 ? 3u : 0u,
          .sizes = {.layers = 6},
          .activation_format = activation,
          .gather_format = gather};
}

INSTANTIATE_TEST_SUITE_P(Codes, CodesCheckTest,
                         testing::Values(Deep("int8", "", 1), Deep("fp8", "", 1),
                                         Deep("", "int8", 2), Deep("", "fp8", 2)),
                         [](const auto& info) {
                           const TinyJob& job = info.param;
                           return job.gather_format.empty() ? "Activations_" + job.activation_format
                                                            : "Weights_" + job.gather_format;
                         });

}  // namespace
}  // namespace terrace
