// Jobs against PyTorch's numbers (tests/golden/pytorch): the golden's data through
// in_process_job.h, data-parallel, and through programs that
// generate.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "coordinator/compiler/compile.h"
#include "proto/v1/program.pb.h"
#include "tests/system/in_process_job.h"
#include "worker/rank/program_memory.h"
#include "worker/vm/vm.h"

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

// A program that generates, ready to run with the weights of a golden.
struct Generating {
  v1::Program program;
  std::optional<ProgramMemory> memory;
  SystemClock clock;
  std::unique_ptr<Vm> vm;
};
absl::StatusOr<std::unique_ptr<Generating>> OpenToGenerate(const Golden& golden, int64_t texts,
                                                           const GenerateShape& shape,
                                                           const std::string& precision = "fp32");

// The logits of every position of every row, [rows, length, vocabulary]: those of the first half
// by "prefill" in pieces, the others by "decode".
absl::StatusOr<std::vector<float>> InferInProcess(const Golden& golden,
                                                  const std::string& precision);

}  // namespace terrace
