// SPDX-License-Identifier: Apache-2.0
#include "worker/data/mixture/document_mixture.h"

#include <utility>

#include "worker/data/permutation.h"

namespace terrace {
namespace {

// Of all samples of the mixture, the share of those of a source that lie in a bucket.
double ShareIn(const DocumentRows& rows, double weight, size_t bucket) {
  return weight * static_cast<double>(rows.sizes()[bucket]) / static_cast<double>(rows.size());
}

// Of the samples that the sources give, the share that lies in each bucket.
std::vector<double> BucketShares(const std::vector<DocumentRows>& sources,
                                 const std::vector<double>& weights) {
  std::vector<double> shares(sources[0].lengths().size());
  for (size_t bucket = 0; bucket < shares.size(); ++bucket) {
    for (size_t i = 0; i < sources.size(); ++i)
      shares[bucket] += ShareIn(sources[i], weights[i], bucket);
  }
  return shares;
}

}  // namespace

DocumentMixture::DocumentMixture(std::vector<DocumentRows> sources,
                                 const std::vector<double>& weights, uint64_t key)
    : sources_(std::move(sources)), steps_(BucketShares(sources_, weights), MixBits(MixBits(key))) {
  for (size_t bucket = 0; bucket < sources_[0].lengths().size(); ++bucket) {
    std::vector<double> shares;
    for (size_t i = 0; i < sources_.size(); ++i)
      shares.push_back(ShareIn(sources_[i], weights[i], bucket));
    rows_.emplace_back(shares, MixBits(MixBits(key) + 1 + bucket));
  }
  // Sources of the same size come in orders of their own.
  for (size_t i = 0; i < sources_.size(); ++i)
    orders_.emplace_back(sources_[i].sizes(), i == 0 ? key : MixBits(key ^ MixBits(i)));
}

// One source's buckets come by their samples, so that each sample is seen once an epoch.
DrawnBatch DocumentMixture::Draw(int64_t step, int64_t global_batch) const {
  if (sources_.size() == 1) return orders_[0].Draw(step, global_batch);
  const SourceDraw::Place place = steps_.At(step);
  return {place.source, place.index * global_batch};
}

WholeEpochs DocumentMixture::WholeBefore(int64_t step, int64_t global_batch) const {
  return sources_.size() == 1 ? orders_[0].WholeEpochsBefore(step, global_batch)
                              : steps_.WholeBlocksBefore(step);
}

int DocumentMixture::Bucket(int64_t step, int64_t global_batch) const {
  return Draw(step, global_batch).bucket;
}

DocumentPlace DocumentMixture::At(int bucket, int64_t place) const {
  const SourceDraw::Place drawn = rows_[bucket].At(place);
  return {drawn.source, bucket, orders_[drawn.source].Sample(bucket, drawn.index)};
}

DocumentPlace DocumentMixture::Row(int64_t step, int64_t row, int64_t global_batch) const {
  const DrawnBatch batch = Draw(step, global_batch);
  return At(batch.bucket, batch.first + row);
}

int64_t DocumentMixture::TokensOfStep(int64_t step, int64_t global_batch) const {
  const DrawnBatch batch = Draw(step, global_batch);
  int64_t tokens = 0;
  for (int64_t row = 0; row < global_batch; ++row)
    tokens += TokensAt(At(batch.bucket, batch.first + row));
  return tokens;
}

int64_t DocumentMixture::TokensOf(int source, int bucket, int64_t begin, int64_t end) const {
  int64_t tokens = 0;
  for (int64_t i = begin; i < end; ++i)
    tokens += sources_[source].Count(bucket, orders_[source].Sample(bucket, i));
  return tokens;
}

// A pass has every sample once.
int64_t DocumentMixture::TokensOfFirst(int source, int bucket, int64_t count) const {
  if (count == 0) return 0;
  const int64_t size = sources_[source].sizes()[bucket];
  const int64_t passes = count / size;
  return passes * sources_[source].tokens(bucket) + TokensOf(source, bucket, passes * size, count);
}

// Within a block of rows the entries of a source's list come in another order.
int64_t DocumentMixture::TokensOfRows(int bucket, int64_t rows) const {
  const WholeEpochs whole = rows_[bucket].WholeBlocksBefore(rows);
  int64_t tokens = 0;
  for (size_t source = 0; source < whole.batches.size(); ++source)
    tokens += TokensOfFirst(static_cast<int>(source), bucket, whole.batches[source]);
  for (int64_t row = whole.steps; row < rows; ++row) tokens += TokensAt(At(bucket, row));
  return tokens;
}

int64_t DocumentMixture::TokensBefore(int64_t step, int64_t global_batch) const {
  const WholeEpochs whole = WholeBefore(step, global_batch);
  int64_t tokens = 0;
  for (size_t bucket = 0; bucket < rows_.size(); ++bucket) {
    if (whole.batches[bucket] > 0)
      tokens += TokensOfRows(static_cast<int>(bucket), whole.batches[bucket] * global_batch);
  }
  for (int64_t rest = whole.steps; rest < step; ++rest) tokens += TokensOfStep(rest, global_batch);
  return tokens;
}

std::vector<int64_t> DocumentMixture::RowsBefore(int64_t step, int64_t global_batch) const {
  if (sources_.size() == 1) return {step * global_batch};
  const WholeEpochs whole = WholeBefore(step, global_batch);
  std::vector<int64_t> rows(sources_.size());
  for (size_t bucket = 0; bucket < rows_.size(); ++bucket) {
    if (whole.batches[bucket] == 0) continue;
    const std::vector<int64_t> here = rows_[bucket].Counts(whole.batches[bucket] * global_batch);
    for (size_t source = 0; source < rows.size(); ++source) rows[source] += here[source];
  }
  for (int64_t rest = whole.steps; rest < step; ++rest) {
    const DrawnBatch batch = Draw(rest, global_batch);
    for (int64_t row = 0; row < global_batch; ++row)
      ++rows[rows_[batch.bucket].At(batch.first + row).source];
  }
  return rows;
}

}  // namespace terrace
