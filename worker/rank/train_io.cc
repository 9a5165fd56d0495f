// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/train_io.h"

#include "worker/rank/schedule.h"

namespace terrace {
namespace {

// The part of a micro-batch that holds row `row`.
std::span<int32_t> Row(std::span<int32_t> batch, int64_t row, int64_t sequence_length) {
  return batch.subspan(row * sequence_length, sequence_length);
}

}  // namespace

// Micro-batch j of data-parallel rank r of D holds rows (j * D + r) * micro_batch + i of the global
// batch: whatever the layout, the same rows make up the step.
void TrainIo::LoadBatch(int micro_batch, std::span<int32_t> tokens, std::span<int32_t> targets) {
  const int64_t ranks = rules_.data_parallel(), rows = rules_.micro_batch(),
                length = rules_.sequence_length();
  const int64_t global_batch = rules_.micro_batches() * ranks * rows;
  const int64_t first = (micro_batch * ranks + data_rank_) * rows;
  for (int64_t i = 0; i < rows; ++i) {
    dataset_.TrainRow(step_, first + i, global_batch, Row(tokens, i, length),
                      Row(targets, i, length));
  }
}

void TrainIo::LoadSchedule(std::span<float, 4> schedule) { FillSchedule(rules_, step_, schedule); }

void TrainIo::Output(v1::OutputKind kind, std::span<const float> values) {
  if (kind != v1::STEP_STATS) return;
  stats_ = {.loss = values[2], .grad_norm = values[1], .skipped = values[3] != 0};
}

void EvalIo::LoadBatch(int, std::span<int32_t> tokens, std::span<int32_t> targets) {
  const int64_t rows = rules_.micro_batch(), length = rules_.sequence_length();
  const int64_t first = (batch_ * rules_.data_parallel() + data_rank_) * rows;
  for (int64_t i = 0; i < rows; ++i) {
    dataset_.ValidationRow(first + i, Row(tokens, i, length), Row(targets, i, length));
  }
  ++batch_;
}

void EvalIo::Output(v1::OutputKind kind, std::span<const float> values) {
  if (kind != v1::LOSS_TOTAL) return;
  loss_sum_ += values[0];
  tokens_ += values[1];
}

}  // namespace terrace
