// Padding changes nothing: a padded batch has the loss and the gradients of its documents computed
// one by one at their true lengths, on every layout, however unequally the tokens fall on ranks and
// micro-batches.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <cmath>
#include <functional>

#include "tests/system/layout_data.h"

namespace terrace {
namespace {

constexpr int64_t kLength = 16;
// Documents of a batch. Micro-batches of one row: rank and micro-batch hold one to sixteen tokens.
constexpr int64_t kCounts[] = {16, 1, 3, 9, 2, 13, 5, 1};

Model TinyLlama() { return TinyModel("llama", {.sequence = kLength}); }

// Row r with kCounts[r] tokens, padded as worker/data does.
JobData Padded() {
  JobData data = RandomJob(TinyLlama(), std::size(kCounts), kLength);
  for (int64_t row = 0; row < data.rows; ++row) {
    for (int64_t t = kCounts[row]; t < kLength; ++t) {
      data.tokens[row * kLength + t] = 0;
      data.targets[row * kLength + t] = -1;
    }
  }
  return data;
}

// One row alone.
JobData Alone(const JobData& padded, int64_t row) {
  JobData data = {.model = TinyLlama(), .weights = padded.weights, .rows = 1};
  data.length = kCounts[row];
  data.train = padded.train;
  const auto cut = [&](const std::vector<int32_t>& ids) {
    const auto first = ids.begin() + row * kLength;
    return std::vector<int32_t>(first, first + data.length);
  };
  data.tokens = cut(padded.tokens);
  data.targets = cut(padded.targets);
  return data;
}

v1::Layout OneRowAtATime(uint32_t micro_batches) {
  v1::Layout layout = TinyLayout({.micro_batches = micro_batches});
  layout.set_micro_batch(1);
  layout.clear_offload();
  return layout;
}

// The mean over all tokens, from the documents alone.
struct Expected {
  double loss = 0;
  Tensors gradients;
};

Expected ExpectedOf(const JobData& padded) {
  double tokens = 0;
  for (const int64_t count : kCounts) tokens += static_cast<double>(count);
  Expected expected;
  for (int64_t row = 0; row < padded.rows; ++row) {
    const JobResult alone = TrainLayout(Alone(padded, row), OneRowAtATime(1), 1);
    const double share = static_cast<double>(kCounts[row]) / tokens;
    expected.loss += share * alone.losses.at(0);
    for (const auto& [name, values] : alone.gradients) {
      std::vector<float>& sum = expected.gradients[name];
      sum.resize(values.size());
      for (size_t i = 0; i < values.size(); ++i) sum[i] += static_cast<float>(share) * values[i];
    }
  }
  return expected;
}

double RelativeError(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += std::pow(double{got[i]} - want[i], 2);
    norm += std::pow(want[i], 2);
  }
  return std::sqrt(error / std::max(norm, 1e-30));
}

TEST(PaddingTest, APaddedBatchIsItsDocumentsOneByOne) {
  const JobData padded = Padded();
  const Expected expected = ExpectedOf(padded);
  const std::map<std::string, std::function<void(v1::Layout*)>> layouts = {
      {"one rank, a row at a time", [](v1::Layout*) {}},
      {"one rank, all rows at once",
       [](v1::Layout* layout) { layout->set_micro_batch(8), layout->set_micro_batches(1); }},
      {"dp 4",
       [](v1::Layout* layout) { layout->set_data_parallel(4), layout->set_micro_batches(2); }},
      {"zero 3",
       [](v1::Layout* layout) {
         layout->set_data_parallel(2), layout->set_micro_batches(4), layout->set_zero_stage(3);
       }},
      {"pp 2", [](v1::Layout* layout) { layout->set_pipeline_parallel(2); }},
      {"tp 2", [](v1::Layout* layout) { layout->set_tensor_parallel(2); }},
      {"cp 2", [](v1::Layout* layout) { layout->set_context_parallel(2); }},
      {"recompute", [](v1::Layout* layout) { layout->set_recompute("full"); }},
  };
  for (const auto& [name, change] : layouts) {
    v1::Layout layout = OneRowAtATime(8);
    change(&layout);
    const JobResult result = TrainLayout(padded, layout, 1);
    ASSERT_EQ(result.losses.size(), 1u) << name;
    EXPECT_NEAR(result.losses[0], expected.loss, 1e-6 * expected.loss) << name;
    ASSERT_EQ(result.gradients.size(), expected.gradients.size()) << name;
    for (const auto& [tensor, want] : expected.gradients) {
      EXPECT_LT(RelativeError(result.gradients.at(tensor), want), 1e-5) << name << " " << tensor;
    }
  }
}

TEST(PaddingTest, WhatStandsInThePaddingDoesNotMatter) {
  const JobData padded = Padded();
  JobData other = padded;
  for (int64_t i = 0; i < other.rows * kLength; ++i) {
    if (other.targets[i] < 0) other.tokens[i] = 7;
  }
  const JobResult one = TrainLayout(padded, OneRowAtATime(8), 2);
  const JobResult two = TrainLayout(other, OneRowAtATime(8), 2);
  EXPECT_EQ(one.losses, two.losses);
  EXPECT_EQ(one.weights, two.weights);
}

}  // namespace
}  // namespace terrace
