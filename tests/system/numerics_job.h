// A whole job inside the test's process: compiles a tiny model, executes its program on one thread
// a rank, and keeps what came out. The dataset is a fixed batch, so that every step sees the same
// rows.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/model/model.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

using Tensors = std::map<std::string, std::vector<float>>;

// A folder of tests/golden/pytorch, read.
struct Golden {
  Model model;
  Tensors weights;
  std::vector<int32_t> tokens, targets;  // [rows, length]
  int64_t rows = 0, length = 0;
  std::vector<float> logits;  // [rows, length, vocabulary]
  Tensors gradients, step10;
  double loss = 0;
  std::vector<double> losses, grad_norms;
  v1::TrainSpec train;  // the hyperparameters, ten steps
};
absl::StatusOr<Golden> ReadGolden(const std::string& folder);

struct JobResult {
  std::vector<double> losses, grad_norms;  // of each step, of rank 0
  Tensors gradients;  // of the mean loss, of the first step, before clipping, of rank 0
  Tensors weights;    // after the last step, of rank 0
};

struct JobShape {
  std::string precision = "fp32";
  uint32_t ranks = 1;
  uint32_t micro_batch = 2;
  uint32_t micro_batches = 1;
  uint32_t threads = 2;
  int64_t steps = 10;
  int64_t bucket_bytes = 16 << 10;  // small: several buckets even here
};
// Trains. Row r of the global batch is row r mod golden.rows of the golden's batch.
absl::StatusOr<JobResult> TrainInProcess(const Golden& golden, const JobShape& shape);

// The logits of every position of every row, by the "infer" program. [rows, length, vocabulary]
absl::StatusOr<std::vector<float>> InferInProcess(const Golden& golden,
                                                  const std::string& precision);

}  // namespace terrace
