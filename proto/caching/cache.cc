// SPDX-License-Identifier: Apache-2.0
#include "proto/caching/cache.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace terrace {
namespace {

constexpr int64_t kRequestMaxBytes = int64_t{1} << 60;  // rounding it up stays in range

absl::Status NotHeld(const void* data, const char* verb) {
  return absl::InvalidArgumentError(
      absl::StrCat("cannot ", verb, " address ", absl::Hex(reinterpret_cast<uintptr_t>(data)),
                   ": it is no block of this allocator that is still held"));
}

}  // namespace

BlockCache::BlockCache(SegmentSource* source, CachingOptions options)
    : source_(source), options_(std::move(options)) {}

BlockCache::~BlockCache() {
  for (const auto& [id, segment] : segments_) source_->Release(segment.data);
}

absl::StatusOr<std::byte*> BlockCache::Allocate(int64_t bytes, uint32_t stream) {
  if (bytes <= 0) return absl::InvalidArgumentError(absl::StrCat("a block of ", bytes, " bytes"));
  std::string why;
  if (bytes > kRequestMaxBytes) return Refuse(bytes, stream, "no request may exceed 2^60 bytes");
  const int64_t wanted = CachingPolicy::BlockBytes(bytes);
  FreeBlock found;
  absl::StatusOr<bool> there = Find(wanted, stream, &found, &why);
  if (there.ok() && !*there && options_.release_when_full) {
    ++statistics_.retries;
    ReleaseCached();
    there = Find(wanted, stream, &found, &why);
  }
  if (!there.ok()) return there.status();
  if (!*there) return Refuse(bytes, stream, why);
  return Take(found, wanted, bytes);
}

absl::StatusOr<bool> BlockCache::Find(int64_t bytes, uint32_t stream, FreeBlock* found,
                                      std::string* why) {
  const CachingPool pool = CachingPolicy::PoolOf(bytes);
  FreeList& list = ListOf(pool);
  // The smallest that is large enough. If it may not serve, nor may a larger one.
  const auto best = list.lower_bound({.stream = stream, .bytes = bytes, .place = {0, 0}});
  if (best != list.end() && best->stream == stream &&
      options_.policy.MayServe(best->bytes, bytes)) {
    *found = *best;
    return true;
  }
  if (options_.policy.expandable) return Grow(bytes, stream, found, why);
  return Reserve(bytes, stream, found, why);
}

absl::StatusOr<bool> BlockCache::Reserve(int64_t bytes, uint32_t stream, FreeBlock* found,
                                         std::string* why) {
  const CachingPool pool = CachingPolicy::PoolOf(bytes);
  const int64_t reserve = CachingPolicy::SegmentBytes(bytes);
  if (reserve > options_.limit_bytes - statistics_.reserved_bytes) {
    *why = absl::StrCat("a segment of ", reserve, " bytes would exceed the limit of ",
                        options_.limit_bytes);
    return false;
  }
  const absl::StatusOr<std::byte*> data = source_->Reserve(reserve);
  if (absl::IsResourceExhausted(data.status())) {
    *why = std::string(data.status().message());
    return false;
  }
  if (!data.ok()) return data.status();
  statistics_.reserved_bytes += reserve;
  const uint64_t id = next_segment_++;
  segments_[id] = {.data = *data,
                   .bytes = reserve,
                   .stream = stream,
                   .pool = pool,
                   .blocks = {{0, Block{.bytes = reserve}}}};
  *found = {.stream = stream, .bytes = reserve, .place = {id, 0}};
  ListOf(pool).insert(*found);
  return true;
}

std::byte* BlockCache::Take(const FreeBlock& found, int64_t bytes, int64_t requested) {
  const auto [id, offset] = found.place;
  Segment& segment = segments_.at(id);
  FreeList& list = ListOf(segment.pool);
  list.erase(found);
  Block& block = segment.blocks.at(offset);
  if (options_.policy.Splits(segment.pool, found.bytes, bytes)) {
    const int64_t rest = found.bytes - bytes;
    segment.blocks.emplace(offset + bytes, Block{.bytes = rest});
    list.insert({.stream = segment.stream, .bytes = rest, .place = {id, offset + bytes}});
    block.bytes = bytes;
  }
  block.requested = requested;
  block.state = CachedBlock::kAllocated;
  statistics_.Allocate(block.bytes, requested);
  std::byte* data = segment.data + offset;
  held_.emplace(data, found.place);
  return data;
}

absl::Status BlockCache::Retire(std::byte* data) {
  const auto held = held_.find(data);
  if (held == held_.end()) return NotHeld(data, "retire");
  Block& block = segments_.at(held->second.first).blocks.at(held->second.second);
  if (block.state != CachedBlock::kAllocated) return NotHeld(data, "retire");
  block.state = CachedBlock::kRetired;
  statistics_.Retire(block.bytes, block.requested);
  return absl::OkStatus();
}

absl::Status BlockCache::Free(std::byte* data) {
  const auto held = held_.find(data);
  if (held == held_.end()) return NotHeld(data, "free");
  const auto [id, offset] = held->second;
  const auto block = segments_.at(id).blocks.find(offset);
  if (block->second.state == CachedBlock::kAllocated)
    statistics_.Retire(block->second.bytes, block->second.requested);
  statistics_.active_bytes -= block->second.bytes;
  held_.erase(held);
  block->second = {.bytes = block->second.bytes};
  MergeInto(id, block);
  return absl::OkStatus();
}

// `block` is free and in no list; its neighbours, if free, are.
void BlockCache::MergeInto(uint64_t id, std::map<int64_t, Block>::iterator block) {
  Segment& segment = segments_.at(id);
  FreeList& list = ListOf(segment.pool);
  const auto listed = [&](std::map<int64_t, Block>::iterator it) {
    return FreeBlock{.stream = segment.stream, .bytes = it->second.bytes, .place = {id, it->first}};
  };
  if (const auto next = std::next(block);
      next != segment.blocks.end() && next->second.state == CachedBlock::kFree) {
    list.erase(listed(next));
    block->second.bytes += next->second.bytes;
    segment.blocks.erase(next);
  }
  if (block != segment.blocks.begin()) {
    const auto before = std::prev(block);
    if (before->second.state == CachedBlock::kFree) {
      list.erase(listed(before));
      before->second.bytes += block->second.bytes;
      segment.blocks.erase(block);
      block = before;
    }
  }
  list.insert(listed(block));
}

int64_t BlockCache::ReleaseCached() {
  if (options_.finish_streams) options_.finish_streams();
  int64_t released = 0;
  for (auto it = segments_.begin(); it != segments_.end();) {
    const auto& [id, segment] = *it;
    if (segment.range_bytes > 0) {
      released += ReleasePages(id);
      if (segment.bytes == 0) {
        source_->Release(segment.data);
        it = segments_.erase(it);
      } else {
        ++it;
      }
      continue;
    }
    const Block& first = segment.blocks.begin()->second;
    if (first.state != CachedBlock::kFree || first.bytes != segment.bytes) {
      ++it;
      continue;
    }
    ListOf(segment.pool)
        .erase({.stream = segment.stream, .bytes = segment.bytes, .place = {id, 0}});
    source_->Release(segment.data);
    released += segment.bytes;
    it = segments_.erase(it);
  }
  statistics_.reserved_bytes -= released;
  return released;
}

absl::Status BlockCache::Refuse(int64_t bytes, uint32_t stream, const std::string& why) {
  ++statistics_.ooms;
  const CachingStatistics now = statistics();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the caching allocator cannot give ", bytes, " bytes to stream ", stream, ": ", why, "; of ",
      now.reserved_bytes, " bytes reserved ", now.allocated_bytes, " are allocated and ",
      now.active_bytes - now.allocated_bytes,
      " wait for other streams, the largest free block has ", now.largest_free_block_bytes,
      absl::StrFormat(" (fragmentation %.3f, of what is free %.3f)", now.UnallocatedShare(),
                      now.ScatteredShare()),
      "; planned memory has no such gaps (layout.allocator planned)"));
}

CachingStatistics BlockCache::statistics() const {
  CachingStatistics result = statistics_;
  for (const FreeList& list : free_) {
    // The largest of each stream lies just before the first of the next.
    for (auto it = list.end(); it != list.begin();) {
      const FreeBlock& largest = *std::prev(it);
      result.largest_free_block_bytes = std::max(result.largest_free_block_bytes, largest.bytes);
      it = list.lower_bound({.stream = largest.stream, .bytes = 0, .place = {0, 0}});
    }
  }
  return result;
}

std::vector<CachedSegment> BlockCache::Snapshot() const {
  std::vector<CachedSegment> result;
  for (const auto& [id, segment] : segments_) {
    result.push_back({.data = segment.data,
                      .bytes = segment.bytes,
                      .stream = segment.stream,
                      .pool = segment.pool,
                      .blocks = {}});
    for (const auto& [offset, block] : segment.blocks) {
      result.back().blocks.push_back({.data = segment.data + offset,
                                      .bytes = block.bytes,
                                      .requested = block.requested,
                                      .state = block.state});
    }
  }
  return result;
}

}  // namespace terrace
