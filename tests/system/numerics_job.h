// Jobs against PyTorch's numbers (tests/golden/pytorch): the golden's data through
// in_process_job.h, data-parallel, and through the "infer" program.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/system/in_process_job.h"

namespace terrace {

// A folder of tests/golden/pytorch, read: the data, and what came out. `train` has ten steps.
struct Golden : JobData {
  std::vector<float> logits;  // [rows, length, vocabulary]
  Tensors gradients, step10;
  double loss = 0;
  std::vector<double> losses, grad_norms;
  // The same rows, padded behind their first `padded_counts` tokens, and what came out of that.
  std::vector<int64_t> padded_counts;
  std::vector<double> padded_losses, padded_grad_norms;
  // In fp16, without the steps that overflowed at first.
  double half_scale = 0;
  std::vector<double> half_losses, half_grad_norms;
};
absl::StatusOr<Golden> ReadGolden(const std::string& folder);

struct JobShape {
  std::string precision = "fp32";
  uint32_t ranks = 1;
  uint32_t micro_batch = 2;
  uint32_t micro_batches = 1;
  uint32_t threads = 2;
  int64_t steps = 10;
  int64_t bucket_bytes = 16 << 10;  // small: several buckets even here
};
v1::Layout LayoutOf(const JobShape& shape);

// The logits of every position of every row, by the "infer" program. [rows, length, vocabulary]
absl::StatusOr<std::vector<float>> InferInProcess(const Golden& golden,
                                                  const std::string& precision);

}  // namespace terrace
