// What "train" and "eval" sequences take and give: rows of the dataset, the schedule of the step,
// losses.
//
// Set up for a step before Vm::Run, read after it. Used by the VM's threads during Run, by its
// caller otherwise.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "kernels/op.h"
#include "proto/v1/program.pb.h"
#include "worker/data/token_dataset.h"
#include "worker/train/loss_scale.h"
#include "worker/vm/sequence_io.h"

namespace terrace {

// Of pairs of answers, all ranks: what TRL calls rewards/accuracies and rewards/margins.
struct PairStats {
  double accuracy = 0;  // the share whose chosen answer has the larger reward
  double margin = 0;    // how much larger it is, on average
};

struct StepStats {
  double loss = 0;       // mean over the tokens of the step, or its pairs, all ranks
  double grad_norm = 0;  // of the mean loss, before clipping
  bool skipped = false;  // not finite: nothing was updated
  double learning_rate = 0;
  double loss_scale = 0;  // 0: the job has none
  std::optional<PairStats> pairs;
};

// Sequences of one step, over all ranks.
int64_t GlobalBatch(const v1::StepRules& rules);

// Cuts this rank's share of tokens out of whole rows, of any length up to the longest. Allocates
// nothing after it was made.
class RowCutter {
 public:
  RowCutter(const v1::StepRules& rules, const kernels::TokenShare& share);

  // Row i of the dataset, whole.
  using ReadRow = std::function<void(int64_t i, const SampleRow& row)>;
  // Fills tokens, targets and starts with their shares of rows 0, 1, ..., one after the other, and
  // places with those of the sequences numbered `first_sequence` + 0, 1, ...
  void Load(const ReadRow& read, int64_t first_sequence, const BatchTarget& batch);

 private:
  // Of row i; `length` tokens of it are this rank's.
  void Cut(std::span<const int32_t> row, int64_t i, int64_t length, std::span<int32_t> batch) const;
  void FillPlaces(int64_t i, int64_t length, int64_t sequence, std::span<int32_t> places) const;

  const int64_t rows_;
  const kernels::TokenShare share_;
  std::vector<int32_t> tokens_, targets_, starts_;  // a whole row, as long as the longest
};

class TrainIo final : public SequenceIo {
 public:
  // `data_rank` of rules.data_parallel ranks that see different data; `share` of the tokens of each
  // sequence. Borrows the rules and the dataset.
  TrainIo(const v1::StepRules& rules, const TokenDataset& dataset, int64_t data_rank,
          const kernels::TokenShare& share = {})
      : rules_(rules),
        dataset_(dataset),
        data_rank_(data_rank),
        cutter_(rules, share),
        loss_scale_(rules) {}

  void SetStep(int64_t step) { step_ = step; }
  const StepStats& stats() const { return stats_; }
  // Follows the steps that were run.
  LossScale& loss_scale() { return loss_scale_; }
  const LossScale& loss_scale() const { return loss_scale_; }

  void LoadBatch(int micro_batch, const BatchTarget& batch) override;
  void LoadSchedule(std::span<float, 4> schedule) override;
  int32_t Updates() const override;
  void Output(v1::OutputKind kind, std::span<const float> values) override;

 private:
  const v1::StepRules& rules_;
  const TokenDataset& dataset_;
  const int64_t data_rank_;
  RowCutter cutter_;
  LossScale loss_scale_;
  int64_t step_ = 0;
  double learning_rate_ = 0;
  StepStats stats_;
};

// Sums losses over several executions of "eval", each on the next micro-batch of every rank.
class EvalIo final : public SequenceIo {
 public:
  EvalIo(const v1::StepRules& rules, const TokenDataset& dataset, int64_t data_rank,
         const kernels::TokenShare& share = {})
      : rules_(rules), dataset_(dataset), data_rank_(data_rank), cutter_(rules, share) {}

  void Start() { batch_ = -1, loss_sum_ = 0, tokens_ = 0, margins_ = 0, right_ = 0; }
  // Before each execution.
  void Next() { ++batch_; }
  double loss() const { return tokens_ > 0 ? loss_sum_ / tokens_ : 0; }
  // Or pairs.
  int64_t tokens() const { return static_cast<int64_t>(tokens_); }
  std::optional<PairStats> pairs() const;

  void LoadBatch(int micro_batch, const BatchTarget& batch) override;
  void LoadSchedule(std::span<float, 4>) override {}
  void Output(v1::OutputKind kind, std::span<const float> values) override;

 private:
  const v1::StepRules& rules_;
  const TokenDataset& dataset_;
  const int64_t data_rank_;
  RowCutter cutter_;
  int64_t batch_ = -1;
  double loss_sum_ = 0;
  double tokens_ = 0;
  double margins_ = 0, right_ = 0;  // of pairs
};

}  // namespace terrace
