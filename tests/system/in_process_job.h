// A whole job inside the test's process: compiles a model for any layout, executes the programs,
// and keeps what came out, as whole tensors. The dataset is a fixed batch, so that every step sees
// the same rows. Ranks have a thread for each stream and communicate over Gloo; or all take turns
// on one thread, which spares a job of milliseconds the waiting of threads for one another.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/model/model.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/plan.pb.h"
#include "proto/v1/program.pb.h"
#include "worker/comm/communicator.h"
#include "worker/vm/vm.h"

namespace terrace {

using Tensors = std::map<std::string, std::vector<float>>;

// What is trained on: rows of one length, and the weights at the start.
struct JobData {
  Model model;
  Tensors weights;
  std::vector<int32_t> tokens, targets;  // [rows, length]
  std::vector<int32_t> starts;           // the same, with data.samples: packed; else empty
  int64_t rows = 0, length = 0;
  v1::TrainSpec train;
};

struct JobResult {
  std::vector<double> losses, grad_norms;   // of each step; the same on all ranks
  std::vector<double> margins, accuracies;  // likewise, of pairs
  // Of the mean loss, of the first step, before clipping; empty with offload, with residuals and
  // with the caching allocator.
  Tensors gradients;
  Tensors weights, first_moment,
      second_moment;  // after the last step; of moments in int8 the codes
  // Payload bytes that each rank sent in one step, by group name.
  std::vector<std::map<std::string, int64_t>> sent_per_step;
  std::vector<std::vector<SequenceTimes>> times;  // of each rank's steps; none in turns
  std::vector<v1::Program> programs;              // by stage
  std::vector<v1::AllocatorStats> allocator;      // of each rank, after the last step
  // Of each rank's arena, as the system sees it, guard pages and second addresses not counted; 0
  // unless in turns.
  std::vector<int64_t> mapped_bytes;
};

struct RunOptions {
  LinkLimit link;  // of every rank
  std::string
      trace_folder;       // empty, or where each rank writes "<rank>.json", all steps but the first
  bool straight = false;  // see CompileInput: all micro-batches are written out
  // All ranks take turns on the calling thread, in an order drawn from this seed (turns.h), and
  // communicate in memory (meeting.h). Links are not slowed then, nothing is traced, and no caching
  // allocator gives out memory.
  std::optional<uint32_t> turns;
};

// One program a stage, checked. `packing`: as layout.packing of a job spec.
absl::StatusOr<std::vector<v1::Program>> CompileJob(const JobData& data, const v1::Layout& layout,
                                                    const std::string& packing = "",
                                                    bool straight = false);

// Trains. Row r of the global batch is row r mod data.rows. INTERNAL when ranks that must hold the
// same values do not, bit for bit, or when they report different losses.
absl::StatusOr<JobResult> TrainPrograms(const JobData& data, std::vector<v1::Program> programs,
                                        int64_t steps, const RunOptions& options = {});

// Both.
absl::StatusOr<JobResult> TrainInProcess(const JobData& data, const v1::Layout& layout,
                                         int64_t steps, const RunOptions& options = {});

}  // namespace terrace
