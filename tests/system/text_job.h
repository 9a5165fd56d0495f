// A small model and rows of a text, whose loss falls.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fstream>
#include <iterator>
#include <numeric>
#include <string>

#include "tests/system/layout_data.h"

namespace terrace {

// `rows` rows of English prose that never changes, by bytes.
inline JobData TextJob(const std::string& family, int64_t rows, int64_t layers = 2) {
  constexpr int64_t kLength = 32;
  JobData data = RandomJob(TinyModel(family, {.vocabulary = 128,
                                              .hidden = 64,
                                              .layers = layers,
                                              .intermediate = 128,
                                              .sequence = kLength}),
                           rows, kLength);
  std::ifstream file(TERRACE_LICENSE);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_GT(static_cast<int64_t>(text.size()), rows * kLength + 1);
  for (int64_t i = 0; i < rows * kLength; ++i) {
    data.tokens[i] = text[i] & 127;
    data.targets[i] = text[i + 1] & 127;
  }
  return data;
}

// The mean loss of the last ten steps.
inline double LastLoss(const JobResult& result) {
  constexpr int64_t kLast = 10;
  return std::accumulate(result.losses.end() - kLast, result.losses.end(), 0.0) / kLast;
}

}  // namespace terrace
