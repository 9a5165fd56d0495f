// What the attention kernels share: one piece of queries that looks at one piece of keys, in plain
// numbers, and which rows of them see each other.
//
// A problem is a piece of `length` queries and a piece of as many keys of each sequence, the
// queries `offset` positions behind the keys: the whole sequence looking at itself in kAttention,
// pairs of pieces in kAttentionBlock. Rows are counted from the starts of the pieces. Query i sees
// key j where i + offset - window < j <= i + offset, and, where sequences hold several documents,
// j lies in the document of i: kernels ask the shape of one sequence (OfSequence) for that.
//
// Compiles as host code too, so that the ranges are tested without a GPU. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/host_device.h"
#include "kernels/dropout.h"
#include "kernels/score_terms.h"

namespace terrace::kernels::cuda {

struct RowRange {
  int64_t begin, end;  // empty where end <= begin
};

// Places in a tile, from its first row on.
struct TileRange {
  int begin, end;  // empty where end <= begin

  TERRACE_HOST_DEVICE bool Holds(int place) const { return place >= begin && place < end; }
};
// The part of `range` in the tile of `count` rows from `tile` on.
TERRACE_HOST_DEVICE constexpr TileRange InTile(const RowRange& range, int64_t tile, int count) {
  const int64_t begin = range.begin - tile, end = range.end - tile;
  return {begin < 0       ? 0
          : begin < count ? static_cast<int>(begin)
                          : count,
          end < 0       ? 0
          : end < count ? static_cast<int>(end)
                        : count};
}

struct AttentionShape {
  int64_t batch, heads, kv_heads, head_dim;
  int64_t rows;                // of each sequence in the operands
  int64_t length;              // of the pieces
  int64_t query_row, key_row;  // of the pieces, among a sequence's rows
  int64_t offset;
  int64_t window;  // 0: none
  float scale;
  bool add_queries;  // o and lse are continued from; dq is added to
  bool add_keys;     // dk and dv are added to
  // Where documents start, not falling: by row of the operands, then by query of the piece of one
  // sequence. Null: each sequence is one document.
  const int32_t* starts = nullptr;
  int64_t key_position = 0;  // of the first key in its sequence
  ScoreTerms terms = {};
  DropoutRule dropout = {};  // of the terms
  SequenceNumbers numbers = {};

  TERRACE_HOST_DEVICE bool Drops() const { return terms.dropout > 0; }
  TERRACE_HOST_DEVICE AttentionShape OfSequence(int64_t sequence) const {
    AttentionShape one = *this;
    if (starts != nullptr) one.starts = starts + sequence * rows + query_row;
    return one;
  }
  // The first key of the document of a query; below 0: an earlier piece has it.
  TERRACE_HOST_DEVICE int64_t DocumentKey(int64_t query) const {
    return starts == nullptr ? 0 : starts[query] - key_position;
  }
  TERRACE_HOST_DEVICE bool Sees(int64_t query, int64_t key) const {
    const int64_t behind = query + offset - key;
    return behind >= 0 && (window == 0 || behind < window) && query < length && key < length &&
           key >= DocumentKey(query);
  }
  // Whether all of the queries [first, end) see all of the keys [key, key_end): no pair of them has
  // to be asked for.
  TERRACE_HOST_DEVICE bool SeesAll(int64_t first, int64_t end, int64_t key, int64_t key_end) const {
    return end <= length && key_end <= length && key_end - 1 <= first + offset &&
           (window == 0 || end - 1 + offset - key < window) && key >= DocumentKey(end - 1);
  }
  // The keys that some of the queries [first, end) see. REQUIRES: first < length.
  TERRACE_HOST_DEVICE RowRange KeysOf(int64_t first, int64_t end) const {
    const int64_t farthest = window == 0 ? 0 : first + offset - window + 1;
    const int64_t document = DocumentKey(first);
    const int64_t begin = farthest > document ? farthest : document;
    const int64_t last = end + offset < length ? end + offset : length;
    return {begin > 0 ? begin : 0, last};
  }
  // The queries that see some of the keys [first, end).
  TERRACE_HOST_DEVICE RowRange QueriesOf(int64_t first, int64_t end) const {
    const int64_t begin = first - offset > 0 ? first - offset : 0;
    int64_t last = window == 0 ? length : end - offset + window - 1;
    if (last > length) last = length;
    return {begin, starts == nullptr ? last : DocumentEnd(begin, last, end - 1)};
  }
  // Behind the last of the queries [begin, end) whose document starts no later than the key.
  TERRACE_HOST_DEVICE int64_t DocumentEnd(int64_t begin, int64_t end, int64_t key) const {
    while (begin < end) {
      const int64_t middle = begin + (end - begin) / 2;
      if (DocumentKey(middle) <= key) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return begin;
  }
  // The keys of the tile of `count` from `tile` on that the query sees.
  TERRACE_HOST_DEVICE TileRange KeysInTile(int64_t query, int64_t tile, int count) const {
    return query < length ? InTile(KeysOf(query, query + 1), tile, count) : TileRange{0, 0};
  }
  // The queries of the tile that see the key.
  TERRACE_HOST_DEVICE TileRange QueriesInTile(int64_t key, int64_t tile, int count) const {
    return key < length ? InTile(QueriesOf(key, key + 1), tile, count) : TileRange{0, 0};
  }
  // Of one head of one sequence, in lse and in what has its shape.
  TERRACE_HOST_DEVICE int64_t LseAt(int64_t sequence, int64_t head, int64_t query) const {
    return (sequence * heads + head) * rows + query_row + query;
  }
  TERRACE_HOST_DEVICE int64_t QueryRow(int64_t sequence, int64_t query) const {
    return sequence * rows + query_row + query;
  }
  TERRACE_HOST_DEVICE int64_t KeyRow(int64_t sequence, int64_t key) const {
    return sequence * rows + key_row + key;
  }
  TERRACE_HOST_DEVICE int64_t group() const { return heads / kv_heads; }
};

// Tiles of `tile` rows of all heads (`heads` of them) of all sequences.
struct AttentionTask {
  int64_t sequence, head, first;
};
TERRACE_HOST_DEVICE constexpr int64_t AttentionTasks(const AttentionShape& s, int64_t heads,
                                                     int64_t tile) {
  return s.batch * heads * ((s.length + tile - 1) / tile);
}
// Of queries, tiles in falling order: later ones see more keys, and a short task shall be the last.
TERRACE_HOST_DEVICE constexpr AttentionTask TaskAt(const AttentionShape& s, int64_t heads,
                                                   int64_t tile, int64_t task) {
  const int64_t tiles = (s.length + tile - 1) / tile;
  const int64_t pairs = s.batch * heads;
  const int64_t pair = task % pairs;
  return {pair / heads, pair % heads, (tiles - 1 - task / pairs) * tile};
}
// Of keys, in rising order: earlier ones are seen by more queries.
TERRACE_HOST_DEVICE constexpr AttentionTask KeyTaskAt(const AttentionShape& s, int64_t heads,
                                                      int64_t tile, int64_t task) {
  const int64_t pairs = s.batch * heads;
  const int64_t pair = task % pairs;
  return {pair / heads, pair % heads, task / pairs * tile};
}

}  // namespace terrace::kernels::cuda
