// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_choice.h"

#include <gtest/gtest.h>

namespace terrace::kernels::cuda {
namespace {

constexpr AttentionFacts kFits = {.precision = MatmulPrecision::kBF16,
                                  .head_dim = 128,
                                  .scale = 0.1f,
                                  .wide = true,
                                  .longest_stride_bytes = 1 << 20,
                                  .wgmma = true};

AttentionFacts With(void (*change)(AttentionFacts*)) {
  AttentionFacts facts = kFits;
  change(&facts);
  return facts;
}

TEST(AttentionChoiceTest, WhatTilesOfSm90aCanTakeGoesThereWhereTheDeviceHasThemAndTheyAreWanted) {
  EXPECT_EQ(ChooseAttention(kFits), AttentionPath::kWgmma);
  EXPECT_EQ(ChooseAttention(With([](AttentionFacts* f) { f->precision = MatmulPrecision::kF16; })),
            AttentionPath::kWgmma);
  EXPECT_EQ(ChooseAttention(With([](AttentionFacts* f) { f->wgmma = false; })),
            AttentionPath::kMma);
}

TEST(AttentionChoiceTest, WhatTheCopyEngineCannotTakeGoesToOtherMatrixInstructions) {
  EXPECT_EQ(ChooseAttention(With([](AttentionFacts* f) { f->wide = false; })), AttentionPath::kMma);
  EXPECT_EQ(ChooseAttention(With([](AttentionFacts* f) { f->terms = true; })), AttentionPath::kMma);
  EXPECT_EQ(ChooseAttention(With([](AttentionFacts* f) { f->scale = 0; })), AttentionPath::kMma);
  EXPECT_EQ(ChooseAttention(With([](AttentionFacts* f) { f->scale = -1; })), AttentionPath::kMma);
  EXPECT_EQ(
      ChooseAttention(With([](AttentionFacts* f) { f->longest_stride_bytes = int64_t{1} << 40; })),
      AttentionPath::kMma);
}

TEST(AttentionChoiceTest, OtherArithmeticAndLargerHeadsGoToVectors) {
  for (MatmulPrecision precision : {MatmulPrecision::kF32, MatmulPrecision::kTF32}) {
    AttentionFacts facts = kFits;
    facts.precision = precision;
    EXPECT_EQ(ChooseAttention(facts), AttentionPath::kF32);
  }
  EXPECT_EQ(ChooseAttention(With([](AttentionFacts* f) { f->head_dim = 136; })),
            AttentionPath::kF32);
}

TEST(AttentionChoiceTest, OnlyItsNameAsksForIt) {
  EXPECT_TRUE(WantsWgmma("wgmma"));
  for (const char* other : {static_cast<const char*>(nullptr), "", "mma", "1", "WGMMA"}) {
    EXPECT_FALSE(WantsWgmma(other));
  }
}

}  // namespace
}  // namespace terrace::kernels::cuda
