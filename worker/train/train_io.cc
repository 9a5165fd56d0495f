// SPDX-License-Identifier: Apache-2.0
#include "worker/train/train_io.h"

#include <algorithm>

#include "worker/train/schedule.h"

namespace terrace {

namespace {

PairStats PairStatsOf(double margins, double right, double pairs) {
  return {.accuracy = right / pairs, .margin = margins / pairs};
}

}  // namespace

int64_t GlobalBatch(const v1::StepRules& rules) {
  return int64_t{rules.micro_batches()} * rules.data_parallel() * rules.micro_batch();
}

RowCutter::RowCutter(const v1::StepRules& rules, const kernels::TokenShare& share)
    : rows_(rules.micro_batch()),
      share_(share),
      tokens_(rules.sequence_length()),
      targets_(rules.sequence_length()),
      starts_(rules.sequence_length()) {}

void RowCutter::Load(const ReadRow& read, int64_t first_sequence, const BatchTarget& batch) {
  const size_t wanted = std::max({batch.tokens.size(), batch.targets.size(), batch.starts.size()});
  const auto length = static_cast<int64_t>(std::max(wanted, batch.places.size() / 2)) / rows_;
  const auto whole = static_cast<size_t>(length * share_.ranks);
  const SampleRow row = {.tokens = std::span(tokens_).first(whole),
                         .targets = std::span(targets_).first(whole),
                         .starts = std::span(starts_).first(batch.starts.empty() ? 0 : whole)};
  for (int64_t i = 0; i < rows_; ++i) {
    if (wanted > 0) read(i, row);
    Cut(row.tokens, i, length, batch.tokens);
    Cut(row.targets, i, length, batch.targets);
    Cut(row.starts, i, length, batch.starts);
    FillPlaces(i, length, first_sequence + i, batch.places);
  }
}

void RowCutter::Cut(std::span<const int32_t> row, int64_t i, int64_t length,
                    std::span<int32_t> batch) const {
  if (batch.empty()) return;
  const std::span<int32_t> out = batch.subspan(i * length, length);
  for (int64_t t = 0; t < length; ++t) out[t] = row[share_.Position(t, length)];
}

void RowCutter::FillPlaces(int64_t i, int64_t length, int64_t sequence,
                           std::span<int32_t> places) const {
  if (places.empty()) return;
  const std::span<int32_t> out = places.subspan(2 * i * length, 2 * length);
  for (int64_t t = 0; t < length; ++t) {
    out[2 * t] = static_cast<int32_t>(share_.Position(t, length));
    out[2 * t + 1] = static_cast<int32_t>(static_cast<uint32_t>(sequence));
  }
}

// Micro-batch j of data-parallel rank r of D holds rows (j * D + r) * micro_batch + i of the global
// batch: whatever the layout, the same rows make up the step.
void TrainIo::LoadBatch(int micro_batch, const BatchTarget& batch) {
  const int64_t rows = rules_.micro_batch();
  const int64_t first = (micro_batch * int64_t{rules_.data_parallel()} + data_rank_) * rows;
  const auto read = [&](int64_t i, const SampleRow& row) {
    dataset_.TrainRow(step_, first + i, GlobalBatch(rules_), row);
  };
  cutter_.Load(std::ref(read), step_ * GlobalBatch(rules_) + first, batch);
}

int32_t TrainIo::Updates() const { return static_cast<int32_t>(loss_scale_.Scheduled(step_)); }

void TrainIo::LoadSchedule(std::span<float, 4> schedule) {
  const int64_t scheduled = loss_scale_.Scheduled(step_);
  learning_rate_ = LearningRate(rules_, scheduled);
  FillSchedule(rules_, scheduled, loss_scale_.Factor(), schedule);
}

// It comes behind the statistics of the step.
void TrainIo::Output(v1::OutputKind kind, std::span<const float> values) {
  if (kind == v1::PREFERENCE)
    stats_.pairs = PairStatsOf(values[0], values[1], GlobalBatch(rules_) / 2);
  if (kind != v1::STEP_STATS) return;
  stats_ = {.loss = values[2],
            .grad_norm = values[1],
            .skipped = values[3] != 0,
            .learning_rate = learning_rate_,
            .loss_scale = loss_scale_.state().scale};
  loss_scale_.Update(stats_.skipped);
}

void EvalIo::LoadBatch(int, const BatchTarget& batch) {
  const int64_t first = (batch_ * rules_.data_parallel() + data_rank_) * rules_.micro_batch();
  const auto read = [&](int64_t i, const SampleRow& row) {
    dataset_.ValidationRow(first + i, row);
  };
  cutter_.Load(std::ref(read), first, batch);
}

std::optional<PairStats> EvalIo::pairs() const {
  if (!rules_.pairs() || tokens_ <= 0) return std::nullopt;
  return PairStatsOf(margins_, right_, tokens_);
}

void EvalIo::Output(v1::OutputKind kind, std::span<const float> values) {
  if (kind == v1::PREFERENCE) {
    margins_ += values[0];
    right_ += values[1];
  }
  if (kind != v1::LOSS_TOTAL) return;
  loss_sum_ += values[0];
  tokens_ += values[1];
}

}  // namespace terrace
