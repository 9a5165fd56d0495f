// How a caching allocator rounds and cuts, with the sizes that PyTorch publishes for its allocator
// of CUDA memory, so that what is measured here is what users of that one get: blocks of whole 512
// bytes; small blocks (up to 1 MiB) in segments of 2 MiB; blocks under 10 MiB in segments of 20
// MiB; larger ones in a segment of their own of whole 2 MiB. Where segments expand, each stream has
// one a pool, which grows by pages of 2 MiB.
//
// Pure and thread-safe: constants and functions.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

namespace terrace {

enum class CachingPool { kSmall, kLarge };  // small and large blocks never share a segment

struct CachingPolicy {
  static constexpr int64_t kBlockBytes = 512;
  static constexpr int64_t kSmallBlockMaxBytes = 1 << 20;
  static constexpr int64_t kSmallSegmentBytes = 2 << 20;
  static constexpr int64_t kSharedSegmentBytes = 20 << 20;
  static constexpr int64_t kOwnSegmentMinBytes = 10 << 20;
  static constexpr int64_t kOwnSegmentRoundBytes = 2 << 20;
  // What CUDA maps at once at the least. PyTorch maps large blocks in pages of 20 MiB, because it
  // does so between steps; a rank has all its memory before the first one.
  static constexpr int64_t kPageBytes = 2 << 20;

  // Segments grow page by page and give single pages back.
  bool expandable = false;

  // Blocks of at least this many bytes are never split, and serve only requests as large; so the
  // largest segments do not fill up with small remains. The default splits everything.
  int64_t max_split_bytes = std::numeric_limits<int64_t>::max();

  // REQUIRES: 0 < requested <= 2^60. What a request occupies when the block found is split.
  static int64_t BlockBytes(int64_t requested);
  // Of a block of whole 512 bytes.
  static CachingPool PoolOf(int64_t block_bytes);
  static int64_t SegmentBytes(int64_t block_bytes);

  // Whether a free block of `found` >= `wanted` bytes may serve it.
  bool MayServe(int64_t found, int64_t wanted) const;
  // Whether the rest becomes a free block of its own; otherwise the request gets it too. A rest of
  // 1 MiB or less would be of no use among large blocks, but where segments expand: there it serves
  // as soon as more is mapped behind it.
  bool Splits(CachingPool pool, int64_t found, int64_t wanted) const;
};

}  // namespace terrace
