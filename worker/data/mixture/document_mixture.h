// Which row of documents (document_rows.h) of which source each row of a run is. A sample below is
// a document, or, packed, what shares a row.
//
// A step takes its rows from one bucket. One source: see bucket_draw.h. Of a mixture each bucket
// comes as often as the samples that the sources give by their weights lie in it. Within it every
// row is drawn from the sources (source_draw.h), by their weights and by how many of their samples
// lie there, so that of all rows a source has its share. A source has an endless list of its
// samples of each bucket, in another order in each pass.
//
// Thread-safe after construction; the same on every machine.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "worker/data/bucket_draw.h"
#include "worker/data/document_rows.h"
#include "worker/data/mixture/source_draw.h"

namespace terrace {

struct DocumentPlace {
  int source = 0, bucket = 0;
  int64_t row = 0;  // of the source's in the bucket
};

class DocumentMixture {
 public:
  // `sources`: the rows of each, closed, with the same lengths. REQUIRES: each has one, and all
  // together have as many as any batch that is asked for.
  DocumentMixture(std::vector<DocumentRows> sources, const std::vector<double>& weights,
                  uint64_t key);

  const DocumentRows& rows(int source) const { return sources_[source]; }
  // The bucket of the step's rows.
  int Bucket(int64_t step, int64_t global_batch) const;
  DocumentPlace Row(int64_t step, int64_t row, int64_t global_batch) const;
  // Tokens of the documents of the steps before `step`, and of the step alone. A resumed job asks
  // for all of its past: whole epochs, and in them whole passes, are counted at once.
  int64_t TokensBefore(int64_t step, int64_t global_batch) const;
  int64_t TokensOfStep(int64_t step, int64_t global_batch) const;
  // How many rows of the steps before `step` come from each source.
  std::vector<int64_t> RowsBefore(int64_t step, int64_t global_batch) const;

 private:
  DrawnBatch Draw(int64_t step, int64_t global_batch) const;
  WholeEpochs WholeBefore(int64_t step, int64_t global_batch) const;
  DocumentPlace At(int bucket, int64_t place) const;
  // Of places [begin, end) of a source's endless list in the bucket; of the first `count`.
  int64_t TokensOf(int source, int bucket, int64_t begin, int64_t end) const;
  int64_t TokensOfFirst(int source, int bucket, int64_t count) const;

  // Of the first rows that are drawn in the bucket.
  int64_t TokensOfRows(int bucket, int64_t rows) const;

  // Without padding.
  int64_t TokensAt(const DocumentPlace& place) const {
    return sources_[place.source].Count(place.bucket, place.row);
  }

  const std::vector<DocumentRows> sources_;
  const SourceDraw steps_;          // of a mixture: the bucket of each step
  std::vector<SourceDraw> rows_;    // by bucket: the source of each row
  std::vector<BucketDraw> orders_;  // by source: the order of its samples in a bucket
};

}  // namespace terrace
