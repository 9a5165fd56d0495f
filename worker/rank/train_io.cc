// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/train_io.h"

#include "worker/rank/schedule.h"

namespace terrace {

RowCutter::RowCutter(const v1::StepRules& rules, const kernels::TokenShare& share)
    : rows_(rules.micro_batch()),
      share_length_(rules.sequence_length() / share.ranks),
      share_(share),
      tokens_(rules.sequence_length()),
      targets_(rules.sequence_length()) {}

void RowCutter::Load(const ReadRow& read, std::span<int32_t> tokens, std::span<int32_t> targets) {
  for (int64_t i = 0; i < rows_; ++i) {
    read(i, tokens_, targets_);
    Cut(tokens_, i, tokens);
    Cut(targets_, i, targets);
  }
}

void RowCutter::Cut(std::span<const int32_t> row, int64_t i, std::span<int32_t> batch) const {
  if (batch.empty()) return;
  const std::span<int32_t> out = batch.subspan(i * share_length_, share_length_);
  for (int64_t t = 0; t < share_length_; ++t) out[t] = row[share_.Position(t, share_length_)];
}

// Micro-batch j of data-parallel rank r of D holds rows (j * D + r) * micro_batch + i of the global
// batch: whatever the layout, the same rows make up the step.
void TrainIo::LoadBatch(int micro_batch, std::span<int32_t> tokens, std::span<int32_t> targets) {
  const int64_t ranks = rules_.data_parallel(), rows = rules_.micro_batch();
  const int64_t global_batch = rules_.micro_batches() * ranks * rows;
  const int64_t first = (micro_batch * ranks + data_rank_) * rows;
  const auto read = [&](int64_t i, std::span<int32_t> row_tokens, std::span<int32_t> row_targets) {
    dataset_.TrainRow(step_, first + i, global_batch, row_tokens, row_targets);
  };
  cutter_.Load(std::ref(read), tokens, targets);
}

void TrainIo::LoadSchedule(std::span<float, 4> schedule) { FillSchedule(rules_, step_, schedule); }

void TrainIo::Output(v1::OutputKind kind, std::span<const float> values) {
  if (kind != v1::STEP_STATS) return;
  stats_ = {.loss = values[2], .grad_norm = values[1], .skipped = values[3] != 0};
}

void EvalIo::LoadBatch(int, std::span<int32_t> tokens, std::span<int32_t> targets) {
  const int64_t first = (batch_ * rules_.data_parallel() + data_rank_) * rules_.micro_batch();
  const auto read = [&](int64_t i, std::span<int32_t> row_tokens, std::span<int32_t> row_targets) {
    dataset_.ValidationRow(first + i, row_tokens, row_targets);
  };
  cutter_.Load(std::ref(read), tokens, targets);
}

void EvalIo::Output(v1::OutputKind kind, std::span<const float> values) {
  if (kind != v1::LOSS_TOTAL) return;
  loss_sum_ += values[0];
  tokens_ += values[1];
}

}  // namespace terrace
