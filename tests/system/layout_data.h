// What the tests of layouts train: small random models, on a few random rows.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/system/in_process_job.h"
#include "tests/unit/coordinator/compiler/layout_matrix.h"

namespace terrace {

// Random weights and `rows` random rows of `length` for the model.
inline JobData RandomJob(Model model, int64_t rows, int64_t length) {
  JobData data = {.model = std::move(model), .rows = rows, .length = length};
  std::mt19937 random(42);
  std::uniform_int_distribution<int32_t> token(
      0, static_cast<int32_t>(data.model.config.vocabulary) - 1);
  for (std::vector<int32_t>* ids : {&data.tokens, &data.targets}) {
    for (int64_t i = 0; i < rows * length; ++i) ids->push_back(token(random));
  }
  for (const Tensor& tensor : data.model.tensors) {
    std::vector<float>& values = data.weights[tensor.name];
    std::normal_distribution<float> normal(tensor.init == Init::kOnes ? 1.0f : 0.0f,
                                           static_cast<float>(data.model.config.initializer_range));
    for (int64_t i = 0; i < tensor.elements(); ++i) values.push_back(normal(random));
  }
  data.train = TinySpec(length).train();
  return data;
}

// Numbers are the same in turns and on threads, which take several times as long: references, and
// jobs of many steps, train in turns.
inline const RunOptions kInTurns = {.turns = 1};

// What threads could do wrong has nothing to do with the family: llama's jobs train as ranks do,
// those of other families in turns.
inline RunOptions ThreadsOfOneFamily(const std::string& family) {
  return family == "llama" ? RunOptions{} : kInTurns;
}

// Trains on one thread a rank; a failure of the test when that does not work.
inline JobResult TrainLayout(const JobData& data, v1::Layout layout, int64_t steps,
                             const RunOptions& options = {}) {
  layout.set_threads_per_rank(1);
  auto result = TrainInProcess(data, layout, steps, options);
  EXPECT_TRUE(result.ok()) << Describe(LayoutCase{"", layout}) << ": " << result.status();
  return result.ok() ? *std::move(result) : JobResult{};
}

}  // namespace terrace
