// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/kernels/cpu/launch.h"

namespace terrace::kernels::cpu {
namespace {

class RowIndexTest : public testing::Test {
 protected:
  TensorView Tokens(std::vector<int32_t> values) {
    tokens_ = std::move(values);
    return ViewOf(DType::kI32, tokens_.data(), {static_cast<int64_t>(tokens_.size())});
  }
  TensorView Table() { return ViewOf(DType::kF32, table_.data(), {5, 4}); }
  TensorView Rows() {
    rows_.assign(tokens_.size() * 4, 7.0f);
    return ViewOf(DType::kF32, rows_.data(), {static_cast<int64_t>(tokens_.size()), 4});
  }

  std::vector<int32_t> tokens_;
  std::vector<float> table_ = std::vector<float>(20, 1.0f);
  std::vector<float> rows_;
};

TEST_F(RowIndexTest, ATokenBeyondTheVocabularyIsAnErrorThatNamesIt) {
  const TensorView tokens = Tokens({0, 4, 5});
  const Status status = Launch(Op::kEmbedding, EmbeddingAttrs{}, {tokens, Table(), {}, Rows(), {}});
  EXPECT_EQ(status.message, "embedding: token 5 at position 2 is outside the table of 5 rows");
}

TEST_F(RowIndexTest, ANegativeTokenIsAnErrorInTheGradientToo) {
  const TensorView tokens = Tokens({-1});
  const Status status =
      Launch(Op::kEmbeddingGrad, EmbeddingAttrs{}, {tokens, Rows(), Table(), {}, {}});
  EXPECT_EQ(status.message,
            "embedding_grad: token -1 at position 0 is outside the table of 5 rows");
  EXPECT_EQ(table_, std::vector<float>(20, 1.0f));
}

TEST_F(RowIndexTest, GatheringARowThatIsNotThereIsAnError) {
  const TensorView index = Tokens({3, 9});
  const Status status = Launch(Op::kGatherRows, NoAttrs{}, {Table(), index, Rows()});
  EXPECT_EQ(status.message, "gather_rows: index 9 at position 1 is outside the table of 5 rows");
}

}  // namespace
}  // namespace terrace::kernels::cpu
