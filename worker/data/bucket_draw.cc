// SPDX-License-Identifier: Apache-2.0
#include "worker/data/bucket_draw.h"

#include <utility>

#include "worker/data/permutation.h"

namespace terrace {

BucketDraw::BucketDraw(std::vector<int64_t> sizes, uint64_t key)
    : sizes_(std::move(sizes)), key_(key) {
  for (const int64_t size : sizes_) samples_ += size;
}

int64_t BucketDraw::AllBefore(int64_t epoch, int64_t batch) const {
  int64_t batches = 0;
  for (size_t i = 0; i < sizes_.size(); ++i) batches += Before(i, epoch, batch);
  return batches;
}

// Rounding takes less than one batch a bucket from an epoch, so that the guess is never too late
// and early by at most the number of buckets (an epoch has a batch's samples or more).
BucketDraw::Epoch BucketDraw::EpochOf(int64_t step, int64_t batch) const {
  Epoch epoch = {.number = step * batch / samples_};
  epoch.first_step = AllBefore(epoch.number, batch);
  for (;; ++epoch.number) {
    const int64_t end = AllBefore(epoch.number + 1, batch);
    epoch.steps = end - epoch.first_step;
    if (step < end) return epoch;
    epoch.first_step = end;
  }
}

DrawnBatch BucketDraw::AtPlace(const Epoch& epoch, int64_t place, int64_t batch) const {
  const uint64_t key = MixBits(key_ ^ MixBits(static_cast<uint64_t>(epoch.number)));
  auto rest = static_cast<int64_t>(Permutation(epoch.steps, key)(place));
  for (size_t i = 0;; ++i) {
    const int64_t before = Before(i, epoch.number, batch);
    const int64_t here = Before(i, epoch.number + 1, batch) - before;
    if (rest < here) return {static_cast<int>(i), (before + rest) * batch};
    rest -= here;
  }
}

DrawnBatch BucketDraw::Draw(int64_t step, int64_t batch) const {
  const Epoch epoch = EpochOf(step, batch);
  return AtPlace(epoch, step - epoch.first_step, batch);
}

int64_t BucketDraw::Sample(int bucket, int64_t index) const {
  const int64_t size = sizes_[bucket];
  const auto pass = static_cast<uint64_t>(index / size);
  const uint64_t bucket_key = MixBits(key_ + 1 + static_cast<uint64_t>(bucket));
  return static_cast<int64_t>(Permutation(size, MixBits(bucket_key ^ MixBits(pass)))(index % size));
}

WholeEpochs BucketDraw::WholeEpochsBefore(int64_t step, int64_t batch) const {
  const Epoch epoch = EpochOf(step, batch);
  WholeEpochs whole = {.steps = epoch.first_step};
  for (size_t i = 0; i < sizes_.size(); ++i) {
    whole.batches.push_back(Before(i, epoch.number, batch));
  }
  return whole;
}

}  // namespace terrace
