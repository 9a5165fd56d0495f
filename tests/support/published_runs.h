// Training runs that others have published (tests/data/published_runs.csv), mapped to a model, a
// layout and a cluster of ours, and the time model's prediction of each.
//
// What other frameworks do differently is in one place, AdapterOf in the .cc file: the attention
// kernel of their time, element by element operations that are not fused, the type in which
// gradients are summed, the network of their cluster, bytes of state a parameter. Nothing there is
// fitted to a row.
//
// Used on one thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/hardware/catalogue.h"
#include "coordinator/planner/estimate.h"

namespace terrace {

struct PublishedRun {
  std::string id, source, model_name, gpu;
  double tokens_per_second_per_device = 0;  // measured; 0: not given
  double memory_gib = 0;                    // measured; 0: not given
  // Empty, or why Terrace has no layout for it.
  std::string not_expressible;
  // Not in a job spec, but the time model knows it: fp8.
  bool beyond_the_spec = false;

  v1::JobSpec spec;
  Model model;
  v1::Layout layout;
  v1::HardwareProfile profile;
  Generation generation = Generation::kHopper;
  double their_state_bytes = 0;  // a parameter, of one rank
  int64_t overhead_bytes = 0;
};

struct Prediction {
  double tokens_per_second_per_device = 0;
  double tflops_per_device = 0;
  double memory_gib = 0;        // of a rank of ours
  double their_memory_gib = 0;  // with their bytes of state
};

// The family of a run's source: "TT25", "LLMF", "FMS", ...
std::string SourceOf(const PublishedRun& run);

// `fused_attention`: as if attention had been fused in all of them, to see what that is worth.
absl::StatusOr<std::vector<PublishedRun>> ReadPublishedRuns(const std::string& path,
                                                            bool fused_attention = false);
// REQUIRES: not_expressible is empty.
Prediction Predict(const PublishedRun& run);

// Of runs that have both numbers: |predicted / measured - 1|, mean.
struct Errors {
  int runs = 0;
  double mean_error = 0;
  double bias = 0;
  int pairs = 0;        // of one source and model, more than 15 % apart
  int pairs_wrong = 0;  // ranked the other way round
};
Errors ErrorsOf(const std::vector<PublishedRun>& runs, const std::string& source = "");
// The mean error over all sources when each is predicted with one factor a generation that the
// other sources' runs would have asked for: what a constant that was fitted would be worth.
double LeaveOneSourceOutError(const std::vector<PublishedRun>& runs);

}  // namespace terrace
