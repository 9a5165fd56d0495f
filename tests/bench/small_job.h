// The job of benchmarks that train in process, and the figure that they take of its steps.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <vector>

#include "tests/system/layout_data.h"

namespace terrace {

// A llama of six layers, 2,048 tokens a step.
inline JobData SmallJob() {
  return RandomJob(
      TinyModel(
          "llama",
          {.vocabulary = 2048, .hidden = 256, .layers = 6, .intermediate = 688, .sequence = 256}),
      /*rows=*/8, /*length=*/256);
}

inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace terrace
