// The shards of a vocabulary together compute the cross-entropy of the whole, in double.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tests/unit/kernels/cpu/launch.h"

namespace terrace::kernels::cpu {
namespace {

struct Shape {
  int64_t rows, vocabulary, shard_rows, shards;
};

// Logits of all shards, padding included and filled with numbers that would show.
class Problem {
 public:
  Problem(const Shape& shape, float amplitude) : shape_(shape) {
    std::mt19937 random(11);
    std::normal_distribution<float> normal(0, amplitude);
    for (int64_t s = 0; s < shape.shards; ++s) {
      std::vector<float> part(shape.rows * shape.shard_rows);
      for (int64_t i = 0; i < static_cast<int64_t>(part.size()); ++i) {
        const bool padding = s * shape.shard_rows + i % shape.shard_rows >= shape.vocabulary;
        part[i] = padding ? 1e30f : normal(random);
      }
      logits.push_back(std::move(part));
    }
    for (int64_t row = 0; row < shape.rows; ++row) {
      targets.push_back(row % 4 == 3 ? -1 : static_cast<int32_t>(random() % shape.vocabulary));
    }
  }

  // Rows on every shard, then the loss and the gradients in place of the logits.
  void Run() {
    const int64_t n = shape_.rows;
    std::vector<float> rows(shape_.shards * n * 3, NAN);
    TensorView target = ViewOf(DType::kI32, targets.data(), {n});
    for (int64_t s = 0; s < shape_.shards; ++s) {
      const TensorView part = ViewOf(DType::kF32, rows.data() + s * n * 3, {n, 3});
      ExpectLaunch(Op::kCrossEntropyRows, s, {Logits(s), target, part});
    }
    const TensorView all = ViewOf(DType::kF32, rows.data(), {shape_.shards, n, 3});
    ExpectLaunch(Op::kCrossEntropyLoss, 0, {target, all, ViewOf(stats), TensorView()});
    for (int64_t s = 0; s < shape_.shards; ++s) {
      ExpectLaunch(Op::kCrossEntropyGrad, s, {target, all, Logits(s), TensorView(), TensorView()});
    }
  }

  double Logit(int64_t row, int64_t column) const {
    return logits[column / shape_.shard_rows][row * shape_.shard_rows + column % shape_.shard_rows];
  }
  double LogSumExp(int64_t row) const {
    double top = -HUGE_VAL, sum = 0;
    for (int64_t c = 0; c < shape_.vocabulary; ++c) top = std::max(top, Logit(row, c));
    for (int64_t c = 0; c < shape_.vocabulary; ++c) sum += std::exp(Logit(row, c) - top);
    return top + std::log(sum);
  }
  double Loss() const {
    double loss = 0;
    for (int64_t row = 0; row < shape_.rows; ++row) {
      if (targets[row] >= 0) loss += LogSumExp(row) - Logit(row, targets[row]);
    }
    return loss;
  }

  std::vector<std::vector<float>> logits;  // of each shard
  std::vector<int32_t> targets;
  std::vector<float> stats = {NAN, NAN};

 private:
  TensorView Logits(int64_t s) {
    return ViewOf(DType::kF32, logits[s].data(), {shape_.rows, shape_.shard_rows});
  }
  void ExpectLaunch(Op op, int64_t shard, const std::vector<TensorView>& operands) const {
    const CrossEntropyAttrs attrs = {
        .shard_rows = shape_.shard_rows, .shard = shard, .vocabulary = shape_.vocabulary};
    EXPECT_EQ(Launch(op, attrs, operands, 2).message, "");
  }

  const Shape shape_;
};

const Shape kShapes[] = {{9, 13, 13, 1}, {30, 100, 50, 2}, {65, 997, 250, 4}, {8, 9, 4, 4}};

TEST(CrossEntropyTest, ShardsTogetherAreTheWholeVocabulary) {
  for (const Shape& shape : kShapes) {
    for (float amplitude : {1.0f, 30.0f}) {
      const Problem before(shape, amplitude);
      Problem after = before;
      after.Run();
      const double loss = before.Loss();
      EXPECT_NEAR(after.stats[0], loss, 1e-6 * loss);
      EXPECT_EQ(after.stats[1], std::count_if(before.targets.begin(), before.targets.end(),
                                              [](int32_t t) { return t >= 0; }));
      for (int64_t row = 0; row < shape.rows; ++row) {
        const double lse = before.LogSumExp(row);
        for (int64_t c = 0; c < shape.shards * shape.shard_rows; ++c) {
          const bool counts = before.targets[row] >= 0 && c < shape.vocabulary;
          const double want =
              counts ? std::exp(before.Logit(row, c) - lse) - (c == before.targets[row]) : 0.0;
          ASSERT_NEAR(after.Logit(row, c), want, counts ? 2e-6 : 0.0) << row << ", " << c;
        }
      }
    }
  }
}

TEST(CrossEntropyTest, GradientsAreTheSlopesOfTheLoss) {
  const Shape shape = {5, 21, 8, 3};
  const Problem before(shape, 1);
  Problem after = before;
  after.Run();
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int64_t c = 0; c < shape.vocabulary; ++c) {
      constexpr float kStep = 1.0f / 512;
      Problem ahead = before, behind = before;
      float& up = ahead.logits[c / 8][row * 8 + c % 8];
      float& down = behind.logits[c / 8][row * 8 + c % 8];
      up += kStep;
      down -= kStep;
      const double slope = (ahead.Loss() - behind.Loss()) / (static_cast<double>(up) - down);
      EXPECT_NEAR(after.Logit(row, c), slope, 1e-6) << row << ", " << c;
    }
  }
}

TEST(CrossEntropyTest, ATargetOutsideTheVocabularyIsRefused) {
  std::vector<float> logits(8), rows(6);
  std::vector<int32_t> targets = {3, 7};
  const Status status =
      Launch(Op::kCrossEntropyRows, CrossEntropyAttrs{.shard_rows = 4, .vocabulary = 7},
             {ViewOf(DType::kF32, logits.data(), {2, 4}), ViewOf(DType::kI32, targets.data(), {2}),
              ViewOf(DType::kF32, rows.data(), {2, 3})});
  EXPECT_EQ(status.message,
            "cross_entropy_rows: target 7 at position 1 is outside the vocabulary of 7");
}

TEST(CrossEntropyTest, NotANumberInALogitReachesTheLoss) {
  Problem problem({4, 20, 10, 2}, 1);
  problem.logits[1][2] = NAN;
  problem.Run();
  EXPECT_TRUE(std::isnan(problem.stats[0]));
}

}  // namespace
}  // namespace terrace::kernels::cpu
