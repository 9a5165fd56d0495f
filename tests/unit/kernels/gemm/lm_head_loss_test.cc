// The fused LM head against a plain double-precision one, and its gradients against differences of
// that one's loss.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/kernels.h"
#include "kernels/gemm_workspace.h"

namespace terrace::kernels::cpu {
namespace {

float RoundToBF16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  bits += 0x7fff + ((bits >> 16) & 1);
  return std::bit_cast<float>(bits & 0xffff0000u);
}

struct LossCase {
  int64_t rows = 1, width = 1, vocab = 2, chunk_rows = 1;
  MatmulPrecision precision = MatmulPrecision::kF32;
  DType activation = DType::kF32;
  bool accumulate = false;
  int threads = 2;
};

class LmHead {
 public:
  explicit LmHead(const LossCase& problem) : problem(problem) {
    std::mt19937_64 random(5);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < problem.rows * problem.width; ++i) {
      hidden.push_back(problem.activation == DType::kBF16 ? RoundToBF16(normal(random))
                                                          : normal(random));
    }
    for (int64_t i = 0; i < problem.vocab * problem.width; ++i)
      weight.push_back(0.5f * normal(random));
    for (int64_t i = 0; i < problem.rows; ++i) {
      targets.push_back(i % 5 == 3 ? -100 : static_cast<int32_t>(random() % problem.vocab));
    }
    dweight.assign(weight.size(), 1.0f);
  }

  void Run(bool grad) {
    const int64_t size = SizeOf(problem.activation);
    std::vector<std::byte> stored = Stored(hidden), dstored(stored.size());
    const TensorView h = View(problem.activation, {problem.rows, problem.width}, stored.data());
    const TensorView w = View(DType::kF32, {problem.vocab, problem.width}, weight.data());
    const TensorView t = View(DType::kI32, {problem.rows}, targets.data());
    const TensorView s = View(DType::kF32, {2}, stats);
    const TensorView dh = View(problem.activation, {problem.rows, problem.width}, dstored.data());
    const TensorView dw = View(DType::kF32, {problem.vocab, problem.width}, dweight.data());
    const int64_t bytes =
        LmHeadWorkspaceBytes(problem.rows, problem.width, problem.vocab, problem.chunk_rows, grad,
                             problem.activation, problem.precision, problem.threads);
    std::vector<std::byte> memory(bytes + 128, std::byte{0xab});
    std::byte* workspace =
        reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
    const Context context{problem.threads, workspace, bytes};
    const LossAttrs attrs{.chunk_rows = problem.chunk_rows,
                          .accumulate = problem.accumulate,
                          .precision = problem.precision};
    const Status status =
        grad ? LmHeadLossGrad(
                   attrs, std::vector<TensorView>{h, w, t, s, dh, dw, TensorView(), TensorView()},
                   context)
             : LmHeadLoss(attrs, std::vector<TensorView>{h, w, t, s, TensorView()}, context);
    EXPECT_TRUE(status.ok()) << status.message;
    EXPECT_EQ(workspace[bytes], std::byte{0xab}) << "wrote past the workspace";
    dhidden.clear();
    for (size_t i = 0; i < hidden.size(); ++i) {
      uint32_t bits = 0;
      if (size == 4) {
        std::memcpy(&bits, dstored.data() + i * 4, 4);
      } else {
        uint16_t upper;
        std::memcpy(&upper, dstored.data() + i * 2, 2);
        bits = uint32_t{upper} << 16;
      }
      dhidden.push_back(std::bit_cast<float>(bits));
    }
  }

  // Sum of losses, with hidden and weight moved a little.
  double Loss(int64_t hidden_index = -1, int64_t weight_index = -1, double by = 0) const {
    double total = 0;
    for (int64_t i = 0; i < problem.rows; ++i) {
      if (targets[i] < 0) continue;
      std::vector<double> logits = Logits(i, hidden_index, weight_index, by);
      const double top = *std::max_element(logits.begin(), logits.end());
      double sum = 0;
      for (const double logit : logits) sum += std::exp(logit - top);
      total += std::log(sum) + top - logits[targets[i]];
    }
    return total;
  }

  void ReferenceGrads(std::vector<double>* hidden_grad, std::vector<double>* weight_grad) const {
    hidden_grad->assign(hidden.size(), 0);
    weight_grad->assign(weight.size(), 0);
    for (int64_t i = 0; i < problem.rows; ++i) {
      if (targets[i] < 0) continue;
      std::vector<double> p = Logits(i, -1, -1, 0);
      const double top = *std::max_element(p.begin(), p.end());
      double sum = 0;
      for (double& x : p) sum += x = std::exp(x - top);
      for (double& x : p) x /= sum;
      p[targets[i]] -= 1;
      for (int64_t v = 0; v < problem.vocab; ++v) {
        for (int64_t c = 0; c < problem.width; ++c) {
          (*hidden_grad)[i * problem.width + c] += p[v] * weight[v * problem.width + c];
          (*weight_grad)[v * problem.width + c] += p[v] * hidden[i * problem.width + c];
        }
      }
    }
  }

  const LossCase problem;
  std::vector<float> hidden, weight, dhidden, dweight;
  std::vector<int32_t> targets;
  float stats[2] = {-1, -1};

 private:
  static TensorView View(DType dtype, std::vector<int64_t> sizes, void* data) {
    TensorView view;
    view.dtype = dtype;
    view.dims = static_cast<int>(sizes.size());
    for (int d = 0; d < view.dims; ++d) view.size[d] = sizes[d];
    view.row_stride = view.RowElements();
    view.data = data;
    return view;
  }

  std::vector<std::byte> Stored(const std::vector<float>& values) const {
    std::vector<std::byte> bytes(values.size() * SizeOf(problem.activation));
    for (size_t i = 0; i < values.size(); ++i) {
      const uint32_t bits = std::bit_cast<uint32_t>(values[i]);
      const uint16_t upper = static_cast<uint16_t>(bits >> 16);
      if (problem.activation == DType::kF32) {
        std::memcpy(bytes.data() + i * 4, &bits, 4);
      } else {
        std::memcpy(bytes.data() + i * 2, &upper, 2);
      }
    }
    return bytes;
  }

  std::vector<double> Logits(int64_t row, int64_t hidden_index, int64_t weight_index,
                             double by) const {
    std::vector<double> logits(problem.vocab);
    for (int64_t v = 0; v < problem.vocab; ++v) {
      for (int64_t c = 0; c < problem.width; ++c) {
        const int64_t h = row * problem.width + c, w = v * problem.width + c;
        logits[v] +=
            (hidden[h] + (h == hidden_index ? by : 0)) * (weight[w] + (w == weight_index ? by : 0));
      }
    }
    return logits;
  }
};

void ExpectMatches(const LossCase& problem) {
  LmHead head(problem);
  const std::vector<float> dweight_before = head.dweight;
  head.Run(/*grad=*/true);
  std::vector<double> hidden_grad, weight_grad;
  head.ReferenceGrads(&hidden_grad, &weight_grad);
  const double loss = head.Loss();
  const bool bf16 = problem.precision == MatmulPrecision::kBF16;
  // Logits of a few units are rounded to bf16: each off by up to 2^-7.
  const double tolerance = bf16 ? 2e-2 : 2e-6;
  const int64_t counted =
      std::count_if(head.targets.begin(), head.targets.end(), [](int t) { return t >= 0; });
  EXPECT_NEAR(head.stats[0], loss, tolerance * std::max(1.0, loss));
  EXPECT_EQ(head.stats[1], counted);
  const double store = problem.activation == DType::kBF16 ? 8e-3 : 0;
  for (size_t i = 0; i < hidden_grad.size(); ++i) {
    ASSERT_NEAR(head.dhidden[i], hidden_grad[i], 3 * tolerance + store * std::abs(hidden_grad[i]))
        << "dhidden " << i;
  }
  for (size_t i = 0; i < weight_grad.size(); ++i) {
    const double expected = weight_grad[i] + (problem.accumulate ? dweight_before[i] : 0);
    ASSERT_NEAR(head.dweight[i], expected, 3 * tolerance) << "dweight " << i;
  }
  LmHead forward(problem);
  forward.Run(/*grad=*/false);
  EXPECT_EQ(forward.stats[0], head.stats[0]);
  EXPECT_EQ(forward.stats[1], head.stats[1]);
}

TEST(LmHeadLossTest, MatchesThePlainLossForEveryPrecisionAndChunking) {
  for (const int64_t chunk_rows : {1, 7, 10, 23, 100}) {
    for (const bool accumulate : {false, true}) {
      ExpectMatches({.rows = 23,
                     .width = 33,
                     .vocab = 101,
                     .chunk_rows = chunk_rows,
                     .accumulate = accumulate});
      ExpectMatches({.rows = 23,
                     .width = 33,
                     .vocab = 101,
                     .chunk_rows = chunk_rows,
                     .precision = MatmulPrecision::kBF16,
                     .activation = DType::kBF16,
                     .accumulate = accumulate});
    }
  }
}

TEST(LmHeadLossTest, MixedElementTypesAndPrecisions) {
  ExpectMatches({.rows = 10, .width = 8, .vocab = 40, .chunk_rows = 4, .activation = DType::kBF16});
  ExpectMatches(
      {.rows = 10, .width = 8, .vocab = 40, .chunk_rows = 4, .precision = MatmulPrecision::kBF16});
}

TEST(LmHeadLossTest, SmallVocabulariesAndSingleRows) {
  for (const int64_t vocab : {1, 2, 15, 16, 17, 33}) {
    ExpectMatches({.rows = 1, .width = 5, .vocab = vocab, .chunk_rows = 1});
    ExpectMatches({.rows = 6, .width = 1, .vocab = vocab, .chunk_rows = 4});
  }
}

TEST(LmHeadLossTest, GradientsAreDifferencesOfTheLoss) {
  LmHead head({.rows = 9, .width = 6, .vocab = 20, .chunk_rows = 4});
  head.Run(/*grad=*/true);
  constexpr double kStep = 1e-5;
  for (int64_t i = 0; i < static_cast<int64_t>(head.hidden.size()); ++i) {
    const double slope = (head.Loss(i, -1, kStep) - head.Loss(i, -1, -kStep)) / (2 * kStep);
    EXPECT_NEAR(head.dhidden[i], slope, 2e-5) << i;
  }
  for (int64_t i = 0; i < static_cast<int64_t>(head.weight.size()); ++i) {
    const double slope = (head.Loss(-1, i, kStep) - head.Loss(-1, i, -kStep)) / (2 * kStep);
    EXPECT_NEAR(head.dweight[i], slope, 2e-5) << i;
  }
}

TEST(LmHeadLossTest, NothingCountedMeansNoLossAndNoGradient) {
  LmHead head({.rows = 7, .width = 5, .vocab = 9, .chunk_rows = 3});
  std::fill(head.targets.begin(), head.targets.end(), -1);
  head.Run(/*grad=*/true);
  EXPECT_EQ(head.stats[0], 0);
  EXPECT_EQ(head.stats[1], 0);
  for (const float x : head.dhidden) EXPECT_EQ(x, 0);
  for (const float x : head.dweight) EXPECT_EQ(x, 0);
}

TEST(LmHeadLossTest, LargeLogitsDoNotOverflow) {
  LmHead head({.rows = 4, .width = 3, .vocab = 17, .chunk_rows = 4});
  for (float& x : head.hidden) x *= 1e4f;
  head.Run(/*grad=*/true);
  EXPECT_NEAR(head.stats[0], head.Loss(), 1e-5 * head.Loss());
  for (const float x : head.dhidden) EXPECT_TRUE(std::isfinite(x));
}

TEST(LmHeadLossTest, NotANumberIsNotLost) {
  for (const MatmulPrecision precision : {MatmulPrecision::kF32, MatmulPrecision::kBF16}) {
    LmHead head({.rows = 4, .width = 3, .vocab = 40, .chunk_rows = 4, .precision = precision});
    head.hidden[3] = std::numeric_limits<float>::quiet_NaN();  // of a counted row
    head.Run(/*grad=*/true);
    EXPECT_TRUE(std::isnan(head.stats[0]));
    EXPECT_FALSE(std::isfinite(head.dweight[0]));
  }
}

TEST(LmHeadLossTest, ResultsDoNotDependOnTheNumberOfThreads) {
  for (const MatmulPrecision precision : {MatmulPrecision::kF32, MatmulPrecision::kBF16}) {
    LossCase problem{.rows = 150,
                     .width = 64,
                     .vocab = 1000,
                     .chunk_rows = 64,
                     .precision = precision,
                     .threads = 1};
    LmHead one(problem);
    one.Run(/*grad=*/true);
    for (const int threads : {2, 3}) {
      problem.threads = threads;
      LmHead more(problem);
      more.Run(/*grad=*/true);
      EXPECT_EQ(more.stats[0], one.stats[0]);
      EXPECT_EQ(more.dhidden, one.dhidden);
      EXPECT_EQ(more.dweight, one.dweight);
    }
  }
}

}  // namespace
}  // namespace terrace::kernels::cpu
