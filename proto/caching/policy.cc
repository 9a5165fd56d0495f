// SPDX-License-Identifier: Apache-2.0
#include "proto/caching/policy.h"

namespace terrace {
namespace {

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

int64_t CachingPolicy::BlockBytes(int64_t requested) { return RoundUp(requested, kBlockBytes); }

CachingPool CachingPolicy::PoolOf(int64_t block_bytes) {
  return block_bytes <= kSmallBlockMaxBytes ? CachingPool::kSmall : CachingPool::kLarge;
}

int64_t CachingPolicy::SegmentBytes(int64_t block_bytes) {
  if (block_bytes <= kSmallBlockMaxBytes) return kSmallSegmentBytes;
  if (block_bytes < kOwnSegmentMinBytes) return kSharedSegmentBytes;
  return RoundUp(block_bytes, kOwnSegmentRoundBytes);
}

bool CachingPolicy::MayServe(int64_t found, int64_t wanted) const {
  if (wanted < max_split_bytes) return found < max_split_bytes;
  return found - wanted < kSharedSegmentBytes;  // it cannot be split: little may be lost
}

bool CachingPolicy::Splits(CachingPool pool, int64_t found, int64_t wanted) const {
  const int64_t rest = found - wanted;
  if (pool == CachingPool::kSmall) return rest >= kBlockBytes;
  if (expandable) return wanted < max_split_bytes && rest >= kBlockBytes;
  return wanted < max_split_bytes && rest > kSmallBlockMaxBytes;
}

}  // namespace terrace
