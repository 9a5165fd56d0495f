// What a rank of an in-process job starts with and what it leaves: weights written into its memory,
// gradients and states read back, and whole tensors put together from the parts of all ranks.
//
// Borrows the program and the memory. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/program/grid.h"
#include "proto/v1/program.pb.h"
#include "tests/system/in_process_job.h"
#include "worker/data/token_dataset.h"
#include "worker/memory/region.h"
#include "worker/train/train_io.h"
#include "worker/vm/streams.h"

namespace terrace {

// The rows of the job, again and again.
class FixedDataset final : public TokenDataset {
 public:
  explicit FixedDataset(const JobData& data) : data_(data) {}
  int64_t tokens(Split) const override { return data_.rows * data_.length; }
  int64_t TrainLength(int64_t, int64_t) const override { return data_.length; }
  int64_t TrainTokens(int64_t begin, int64_t end, int64_t) const override {
    return (end - begin) * data_.rows * data_.length;
  }
  void TrainRow(int64_t step, int64_t row, int64_t, const SampleRow& to) const override;
  void ValidationRow(int64_t index, const SampleRow& to) const override;

 private:
  const JobData& data_;
};

// One rank's memory and place.
struct Rank {
  const v1::Program& program;
  Coordinates coordinates;
  std::span<Region* const> regions;

  // From so many bytes into a buffer on; what is bf16 there as f32, codes as they are.
  std::vector<float> Read(uint32_t buffer, int64_t offset, int64_t elements) const;
};

TrainIo TrainIoOf(const Rank& rank, const TokenDataset& dataset);

// Of one step, over all ranks: what a sum of losses is divided by.
int64_t CountedTargets(const JobData& data, const v1::StepRules& rules);

absl::Status LoadWeights(const Rank& rank, const Tensors& weights);

// A run of a tensor's elements as one rank holds them.
struct Piece {
  std::string tensor;
  int64_t begin = 0;
  std::vector<float> values;
  bool owned = false;
};

// At the first write of state all gradients of the step are final: keeps those of the first step.
// Gradients that stream through the host in chunks or that are used up one by one are never there
// all at once, those that the caching allocator places have no offset, and where residuals are kept
// the first write of state comes before.
class GradientKeeper final : public StateFence {
 public:
  explicit GradientKeeper(const Rank& rank);
  void WaitUntilUnread() override;
  std::vector<Piece> pieces;

 private:
  const Rank& rank_;
  bool kept_;
};

struct RankResult {
  std::vector<double> losses, grad_norms, margins, accuracies;
  std::vector<Piece> gradients, weights, first_moment, second_moment;
  std::map<std::string, int64_t> sent_per_step;
  std::vector<SequenceTimes> times;
  v1::AllocatorStats allocator;
  int64_t mapped_bytes = 0;  // see JobResult
};

// After a step: what it reported.
void AddStats(const StepStats& stats, RankResult* result);
// After the last one.
void AddStates(const Rank& rank, GradientKeeper* keeper, RankResult* result);

// What TrainInProcess returns. INTERNAL when ranks that must hold the same do not, bit for bit.
absl::StatusOr<JobResult> Merge(const JobData& data, std::vector<v1::Program> programs,
                                const std::vector<RankResult>& ranks);

}  // namespace terrace
