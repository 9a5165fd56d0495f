// Every layout against one rank: same seed, same data, losses of twenty steps and every gradient.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/system/in_process_job.h"
#include "tests/unit/coordinator/compiler/layout_matrix.h"

namespace terrace {
namespace {

constexpr int64_t kRows = 8;
constexpr int64_t kSteps = 20;
constexpr size_t kSampleEvery = 331;

// A tiny model of the family with random weights and rows.
JobData RandomData(const std::string& family) {
  JobData data = {.model = MatrixModel(family), .rows = kRows, .length = 16};
  std::mt19937 random(42);
  std::uniform_int_distribution<int32_t> token(
      0, static_cast<int32_t>(data.model.config.vocabulary) - 1);
  for (int64_t i = 0; i < kRows * data.length; ++i) data.tokens.push_back(token(random));
  for (int64_t i = 0; i < kRows * data.length; ++i) data.targets.push_back(token(random));
  for (const Tensor& tensor : data.model.tensors) {
    std::vector<float>& values = data.weights[tensor.name];
    std::normal_distribution<float> normal(tensor.init == Init::kOnes ? 1.0f : 0.0f,
                                           static_cast<float>(data.model.config.initializer_range));
    for (int64_t i = 0; i < tensor.elements(); ++i) values.push_back(normal(random));
  }
  data.train = MatrixSpec().train();
  data.train.set_steps(kSteps);
  return data;
}

const JobData& DataOf(const std::string& family) {
  static auto* data = new std::map<std::string, JobData>;
  const auto it = data->find(family);
  return it != data->end() ? it->second : data->emplace(family, RandomData(family)).first->second;
}

// One rank with the same global batch.
v1::Layout OneRank(const v1::Layout& layout) {
  v1::Layout one = MatrixLayout();
  one.set_precision(layout.precision());
  one.set_micro_batch(layout.micro_batch());
  one.set_micro_batches(layout.micro_batches() * layout.data_parallel());
  one.set_threads_per_rank(1);
  return one;
}

JobResult Train(const std::string& family, v1::Layout layout) {
  layout.set_threads_per_rank(1);
  auto result = TrainInProcess(DataOf(family), layout, kSteps);
  EXPECT_TRUE(result.ok()) << Describe(LayoutCase{family, layout}) << ": " << result.status();
  return result.ok() ? *std::move(result) : JobResult{};
}

const JobResult& Reference(const std::string& family, const v1::Layout& layout) {
  static auto* references = new std::map<std::string, JobResult>;
  const v1::Layout one = OneRank(layout);
  const std::string key = Describe(LayoutCase{family, one});
  const auto it = references->find(key);
  return it != references->end() ? it->second
                                 : references->emplace(key, Train(family, one)).first->second;
}

double RelativeError(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(double{a[i]} - double{b[i]}, 2);
    norm += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(difference) / std::max(std::sqrt(norm), 1e-30);
}

// How much larger the relative error may be where a gradient is a small difference of large sums:
// those of vectors add up tokens of either sign; softmax does not see what all keys of a query have
// in common, so the gradients of queries and keys are such differences as well.
double Cancellation(const Tensor& tensor) {
  using enum TensorRole;
  if (tensor.role == kKBias || tensor.role == kQNorm || tensor.role == kKNorm) return 4;
  if (tensor.shape.size() < 2) return 2;
  const bool scores = tensor.role == kQkv || tensor.role == kQ || tensor.role == kK;
  return scores ? 1.3 : 1;  // 1.24 with vectors of eight, below 1 with sixteen
}

// 4 * 1.03^(L + 1 - l) * eps for layer l of L (arXiv 2506.09280): what a correct change of the
// order of sums may do to a gradient. Embeddings count as before the first layer, the head as after
// the last.
double Bound(const Model& model, const Tensor& tensor, const std::string& precision) {
  const double epsilon = precision == "bf16" ? std::pow(2.0, -8) : std::pow(2.0, -23);
  const double layers = static_cast<double>(model.config.layers);
  const bool first =
      tensor.role == TensorRole::kTokenEmbedding || tensor.role == TensorRole::kPositionEmbedding;
  const double layer = tensor.layer >= 0 ? tensor.layer + 1.0 : first ? 0.0 : layers + 1;
  return Cancellation(tensor) * 4 * std::pow(1.03, layers + 1 - layer) * epsilon;
}

void ExpectParity(const LayoutCase& c) {
  const JobResult& one = Reference(c.family, c.layout);
  const JobResult many = Train(c.family, c.layout);
  ASSERT_EQ(many.losses.size(), one.losses.size());
  const double loss_bound = c.layout.precision() == "bf16" ? 2e-2 : 1e-5;
  for (size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(many.losses[i], one.losses[i], loss_bound * one.losses[i])
        << Describe(c) << " step " << i;
    if (testing::Test::HasFailure()) break;
  }
  const Model& model = DataOf(c.family).model;
  for (const Tensor& tensor : model.tensors) {
    EXPECT_LE(RelativeError(many.gradients.at(tensor.name), one.gradients.at(tensor.name)),
              Bound(model, tensor, c.layout.precision()))
        << Describe(c) << " " << tensor.name;
  }
}

// All combinations take hours: TERRACE_ALL_LAYOUTS=1 runs them, TERRACE_LAYOUTS="dp1 tp2+sp" those
// whose description has this part, and without either a fixed sample is run.
TEST(ParityTest, EveryLayoutTrainsLikeOneRank) {
  const bool all = std::getenv("TERRACE_ALL_LAYOUTS") != nullptr;
  const char* filter = std::getenv("TERRACE_LAYOUTS");
  const std::vector<LayoutCase> cases =
      LayoutMatrix(8, all || filter != nullptr ? 1 : kSampleEvery);
  for (const LayoutCase& c : cases) {
    if (filter != nullptr && Describe(c).find(filter) == std::string::npos) continue;
    ExpectParity(c);
  }
  RecordProperty("cases", static_cast<int>(cases.size()));
}

}  // namespace
}  // namespace terrace
