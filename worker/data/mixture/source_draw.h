// Which source of a mixture each sample of a run comes from, computed, not stored.
//
// Samples are numbered in the order of the run. They come in blocks of 16 times as many as there
// are sources, on average; a block has of each source its share, to within one sample (what is left
// over goes to the next block), in a pseudo-random order. So over any stretch of a run a source has
// its share of the samples, to about a block, and each source has an endless list of which the
// n-th sample that comes from it takes the n-th entry.
//
// Pure and thread-safe; the same on every machine.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "worker/data/bucket_draw.h"

namespace terrace {

class SourceDraw {
 public:
  // Shares are kept to 2^-24 of all. REQUIRES: finite weights, none below 0, one above.
  SourceDraw(const std::vector<double>& weights, uint64_t key);

  struct Place {
    int source = 0;
    int64_t index = 0;  // in the endless list of the source
  };
  // REQUIRES: 0 <= sample < 2^43.
  Place At(int64_t sample) const;
  // The blocks that ended by `sample`: of each source the first entries of its list, all of them.
  WholeEpochs WholeBlocksBefore(int64_t sample) const;
  // How many of the first `samples` come from each source.
  std::vector<int64_t> Counts(int64_t samples) const;

 private:
  // A block of samples is what BucketDraw calls an epoch, of buckets with as many samples as the
  // weights have units, in batches of so many units.
  const std::vector<int64_t> units_;
  const int64_t units_of_a_sample_;
  const BucketDraw blocks_;
};

}  // namespace terrace
