// Every layout against one rank: same seed, same data, losses of twenty steps and every gradient.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
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
  // Values do not depend on where buffers lie; the other system tests execute searched packings.
  auto result = TrainInProcess(DataOf(family), layout, kSteps, {.search_packings = false});
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
  if (tensor.role == kKBias) return 4;  // without rotary angles nothing but such a difference
  if (tensor.shape.size() < 2) return 2;
  const bool scores = tensor.role == kQkv || tensor.role == kQ || tensor.role == kK;
  return scores ? 1.1 : 1;  // 1.05 in f32 with vectors of eight, below 1 with sixteen
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

// The largest error so far beside what it is bounded by, for each precision and what Cancellation
// grants: says how much room a bound leaves.
struct Worst {
  double ratio = 0;
  std::string where;
};
std::map<std::string, Worst>& WorstOf() {
  static auto* worst = new std::map<std::string, Worst>;
  return *worst;
}

void Note(const LayoutCase& c, const Tensor& tensor, double ratio) {
  Worst& worst = WorstOf()[absl::StrCat(c.layout.precision(), " x", Cancellation(tensor))];
  if (ratio <= worst.ratio) return;
  worst = {ratio, absl::StrCat(Describe(c), " ", tensor.name)};
}

void ExpectParity(const LayoutCase& c) {
  const JobResult& one = Reference(c.family, c.layout);
  const JobResult many = Train(c.family, c.layout);
  ASSERT_EQ(many.losses.size(), one.losses.size());
  const double loss_bound = c.layout.precision() == "bf16" ? 2e-2 : 1e-5;
  for (size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(many.losses[i], one.losses[i], loss_bound * one.losses[i])
        << Describe(c) << " step " << i;
    if (std::abs(many.losses[i] - one.losses[i]) > loss_bound * one.losses[i]) break;
  }
  const Model& model = DataOf(c.family).model;
  for (const Tensor& tensor : model.tensors) {
    const double error =
        RelativeError(many.gradients.at(tensor.name), one.gradients.at(tensor.name));
    const double bound = Bound(model, tensor, c.layout.precision());
    EXPECT_LE(error, bound) << Describe(c) << " " << tensor.name;
    Note(c, tensor, error / bound);
  }
}

// ---- which cases --------------------------------------------------------------------------------

// Shard `index` of `count`: every count-th case. References serve all cases of a family, precision
// and global batch, which a shard has of each.
struct Shard {
  size_t index = 0;
  size_t count = 1;
};

// "k/n", k from 0 on; without it there is one shard.
Shard ShardFromEnvironment() {
  const char* text = std::getenv("TERRACE_LAYOUTS_SHARD");
  if (text == nullptr) return {};
  const std::vector<std::string> parts = absl::StrSplit(text, '/');
  Shard shard;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &shard.index) ||
      !absl::SimpleAtoi(parts[1], &shard.count) || shard.index >= shard.count) {
    ADD_FAILURE() << "TERRACE_LAYOUTS_SHARD: got '" << text << "', must be k/n with k below n";
    return {0, std::numeric_limits<size_t>::max()};
  }
  return shard;
}

std::vector<LayoutCase> Cases() {
  const bool all = std::getenv("TERRACE_ALL_LAYOUTS") != nullptr;
  const char* filter = std::getenv("TERRACE_LAYOUTS");
  const Shard shard = ShardFromEnvironment();
  std::vector<LayoutCase> cases;
  size_t index = 0;
  for (LayoutCase& c : LayoutMatrix(8, all || filter != nullptr ? 1 : kSampleEvery)) {
    if (filter != nullptr && Describe(c).find(filter) == std::string::npos) continue;
    if (index++ % shard.count == shard.index) cases.push_back(std::move(c));
  }
  return cases;
}

// A line every minute and every 200 cases: what runs for hours says how far it is.
class Progress {
 public:
  explicit Progress(size_t cases) : cases_(cases) {}

  void Done(bool failed) {
    ++done_;
    failed_ += failed;
    const auto now = std::chrono::steady_clock::now();
    if (done_ % 200 != 0 && done_ != cases_ && now - printed_ < std::chrono::minutes(1)) return;
    printed_ = now;
    std::cout << absl::StrFormat("%d of %d layouts, %d failed, %.0f s; errors over bounds:", done_,
                                 cases_, failed_,
                                 std::chrono::duration<double>(now - begin_).count());
    for (const auto& [what, worst] : WorstOf()) {
      std::cout << absl::StrFormat(" %s %.2f", what, worst.ratio);
    }
    std::cout << std::endl;
  }

 private:
  const size_t cases_;
  size_t done_ = 0, failed_ = 0;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point printed_ = begin_;
};

int Failures() {
  return testing::UnitTest::GetInstance()->current_test_info()->result()->total_part_count();
}

// All combinations take hours: TERRACE_ALL_LAYOUTS=1 runs them, TERRACE_LAYOUTS="dp1 tp2+sp" those
// whose description has this part, and without either a fixed sample is run. Of any of these
// TERRACE_LAYOUTS_SHARD=k/n runs an n-th.
TEST(ParityTest, EveryLayoutTrainsLikeOneRank) {
  const std::vector<LayoutCase> cases = Cases();
  Progress progress(cases.size());
  for (const LayoutCase& c : cases) {
    const int failures = Failures();
    ExpectParity(c);
    progress.Done(Failures() > failures);
  }
  for (const auto& [what, worst] : WorstOf()) {
    std::cout << absl::StrFormat("%s: at most %.3f of the bound, %s", what, worst.ratio,
                                 worst.where)
              << std::endl;
  }
  RecordProperty("cases", static_cast<int>(cases.size()));
}

}  // namespace
}  // namespace terrace
