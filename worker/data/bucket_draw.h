// Which samples of which bucket make up the batch of a step, computed, not stored.
//
// A step takes all its samples from one bucket, and every sample is to be seen equally often. So
// each bucket has an endless list of its samples, in another order in each pass, and is cut into
// batches; an epoch holds as many batches of each bucket as it has samples for (what is left over
// goes to the next epoch), in a pseudo-random order. Over an epoch a bucket's share of the steps is
// its share of the samples, to within one batch.
//
// Pure and thread-safe; the same on every machine.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace terrace {

struct DrawnBatch {
  int bucket = 0;
  int64_t first = 0;  // index of its first sample in the endless list of the bucket
};

// What epochs drew from the first step on: of each bucket the first batches of its endless list,
// all of them. Within an epoch they come in another order.
struct WholeEpochs {
  int64_t steps = 0;
  std::vector<int64_t> batches;  // by bucket
};

class BucketDraw {
 public:
  // `sizes`: samples of each bucket. REQUIRES: at least as many together as in any batch asked for.
  BucketDraw(std::vector<int64_t> sizes, uint64_t key);

  // Of `batch` samples. Step by step without memory of what came before.
  DrawnBatch Draw(int64_t step, int64_t batch) const;
  // The sample of the bucket, below its size, at a place of its endless list.
  int64_t Sample(int bucket, int64_t index) const;
  // The epochs that ended by `step`.
  WholeEpochs WholeEpochsBefore(int64_t step, int64_t batch) const;

 private:
  struct Epoch {
    int64_t number = 0;
    int64_t first_step = 0;
    int64_t steps = 0;
  };
  Epoch EpochOf(int64_t step, int64_t batch) const;
  // Batches of a bucket, and of all, in the epochs before `epoch`.
  int64_t Before(size_t bucket, int64_t epoch, int64_t batch) const {
    return epoch * sizes_[bucket] / batch;
  }
  int64_t AllBefore(int64_t epoch, int64_t batch) const;
  // The bucket at a place of the epoch, and which of its batches in that epoch it is.
  DrawnBatch AtPlace(const Epoch& epoch, int64_t place, int64_t batch) const;

  const std::vector<int64_t> sizes_;
  const uint64_t key_;
  int64_t samples_ = 0;
};

}  // namespace terrace
