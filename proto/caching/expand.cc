// How segments that expand grow and give pages back. Every unmapped block begins and ends on a
// page, the last block of a segment is mapped, and a segment with nothing mapped does not exist.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/caching/cache.h"

namespace terrace {
namespace {

constexpr int64_t kPage = CachingPolicy::kPageBytes;
// Addresses of one segment where no limit says less; a process has 2^47.
constexpr int64_t kRangeMaxBytes = int64_t{1} << 40;

int64_t PageUp(int64_t value) { return (value + kPage - 1) / kPage * kPage; }
int64_t PageDown(int64_t value) { return value / kPage * kPage; }

}  // namespace

absl::StatusOr<bool> BlockCache::Grow(int64_t bytes, uint32_t stream, FreeBlock* found,
                                      std::string* why) {
  const absl::StatusOr<uint64_t> id = GrowingSegment(stream, CachingPolicy::PoolOf(bytes));
  if (absl::IsResourceExhausted(id.status())) {
    *why = std::string(id.status().message());
    return false;
  }
  if (!id.ok()) return id.status();
  const Segment& segment = segments_.at(*id);
  const Room room = FindRoom(segment, bytes);
  absl::Status status;
  if (room.offset + bytes > segment.range_bytes) {
    status = absl::ResourceExhaustedError(
        absl::StrCat("its segment would exceed its ", segment.range_bytes, " bytes of addresses"));
  } else if (room.bytes > options_.limit_bytes - statistics_.reserved_bytes) {
    status = absl::ResourceExhaustedError(absl::StrCat(
        room.bytes, " more bytes of pages would exceed the limit of ", options_.limit_bytes));
  } else {
    status = MapAll(segment, room.pieces);
  }
  if (!status.ok()) {
    if (segment.bytes == 0) {  // nothing of it was ever mapped
      source_->Release(segment.data);
      segments_.erase(*id);
    }
    if (!absl::IsResourceExhausted(status)) return status;
    *why = std::string(status.message());
    return false;
  }
  for (const Piece& piece : room.pieces) AddMapped(*id, piece);
  const auto block = std::prev(segment.blocks.upper_bound(room.offset));
  *found = {.stream = stream, .bytes = block->second.bytes, .place = {*id, block->first}};
  return true;
}

absl::StatusOr<uint64_t> BlockCache::GrowingSegment(uint32_t stream, CachingPool pool) {
  for (const auto& [id, segment] : segments_) {
    if (segment.stream == stream && segment.pool == pool) return id;
  }
  // Twice what may be mapped: holes that are too small for a request are skipped.
  const int64_t range =
      std::min(2 * PageUp(std::min(options_.limit_bytes, kRangeMaxBytes / 2)), kRangeMaxBytes);
  ASSIGN_OR_RETURN(std::byte* const data, source_->ReserveRange(range));
  const uint64_t id = next_segment_++;
  segments_[id] = {
      .data = data, .stream = stream, .pool = pool, .blocks = {}, .range_bytes = range};
  return id;
}

// Among the places where a request would find nothing but free and unmapped blocks, the one for
// which fewest pages must be mapped, and of these the lowest: at the beginning of such a block, at
// the end of the last of several in a row, or beyond the segment's end.
BlockCache::Room BlockCache::FindRoom(const Segment& segment, int64_t bytes) {
  // What must be mapped for a request at `offset`, in the row of blocks from `first` on.
  const auto at = [&](std::map<int64_t, Block>::const_iterator first, int64_t offset) {
    Room room = {.offset = offset, .bytes = 0, .pieces = {}};
    const int64_t end = offset + bytes;
    for (auto block = first; block != segment.blocks.end() && block->first < end; ++block) {
      const int64_t begin = std::max(block->first, PageDown(offset));
      const int64_t stop = std::min(block->first + block->second.bytes, PageUp(end));
      if (block->second.state != CachedBlock::kUnmapped || begin >= stop) continue;
      room.pieces.push_back({begin, stop - begin});
    }
    if (end > segment.bytes) {
      const int64_t begin = std::max(segment.bytes, PageDown(offset));
      room.pieces.push_back({begin, PageUp(end) - begin});
    }
    for (const Piece& piece : room.pieces) room.bytes += piece.bytes;
    return room;
  };
  Room best = at(segment.blocks.end(), segment.bytes);
  const auto consider = [&](Room room) {
    if (std::pair(room.bytes, room.offset) < std::pair(best.bytes, best.offset))
      best = std::move(room);
  };
  const auto held = [](const Block& block) {
    return block.state == CachedBlock::kAllocated || block.state == CachedBlock::kRetired;
  };
  for (auto first = segment.blocks.begin(); first != segment.blocks.end();) {
    if (held(first->second)) {
      ++first;
      continue;
    }
    auto next = first;
    while (next != segment.blocks.end() && !held(next->second)) ++next;
    const bool last = next == segment.blocks.end();
    const int64_t end = last ? segment.range_bytes : next->first;
    for (auto block = first; block != next && block->first + bytes <= end; ++block)
      consider(at(block, block->first));
    if (!last && end - bytes >= first->first)
      consider(
          at(first, PageDown(end - bytes) < first->first ? first->first : PageDown(end - bytes)));
    first = next;
  }
  return best;
}

absl::Status BlockCache::MapAll(const Segment& segment, const std::vector<Piece>& pieces) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    const absl::Status mapped = source_->Map(segment.data + pieces[i].offset, pieces[i].bytes);
    if (mapped.ok()) continue;
    for (size_t j = 0; j < i; ++j) source_->Unmap(segment.data + pieces[j].offset, pieces[j].bytes);
    return mapped;
  }
  return absl::OkStatus();
}

void BlockCache::AddMapped(uint64_t id, const Piece& piece) {
  Segment& segment = segments_.at(id);
  statistics_.reserved_bytes += piece.bytes;
  const int64_t end = piece.offset + piece.bytes;
  if (piece.offset >= segment.bytes) {
    segment.bytes = end;
  } else {
    const auto hole = std::prev(segment.blocks.upper_bound(piece.offset));
    const int64_t hole_end = hole->first + hole->second.bytes;
    if (end < hole_end) {
      segment.blocks.emplace(end, Block{.bytes = hole_end - end, .state = CachedBlock::kUnmapped});
    }
    if (hole->first == piece.offset) {
      segment.blocks.erase(hole);
    } else {
      hole->second.bytes = piece.offset - hole->first;
    }
  }
  MergeInto(id, segment.blocks.emplace(piece.offset, Block{.bytes = piece.bytes}).first);
}

// Of a free block the whole pages inside it. REQUIRES: the streams have finished.
int64_t BlockCache::ReleasePages(uint64_t id) {
  Segment& segment = segments_.at(id);
  FreeList& list = ListOf(segment.pool);
  int64_t released = 0;
  std::map<int64_t, Block> blocks;
  const auto add = [&](int64_t begin, int64_t end, const Block& like) {
    if (begin >= end) return;
    const bool unmapped = like.state == CachedBlock::kUnmapped;
    if (unmapped && !blocks.empty() && blocks.rbegin()->second.state == CachedBlock::kUnmapped) {
      blocks.rbegin()->second.bytes += end - begin;
      return;
    }
    Block block = like;
    block.bytes = end - begin;
    blocks.emplace_hint(blocks.end(), begin, block);
    if (block.state == CachedBlock::kFree)
      list.insert({.stream = segment.stream, .bytes = block.bytes, .place = {id, begin}});
  };
  for (const auto& [offset, block] : segment.blocks) {
    const int64_t end = offset + block.bytes, first = PageUp(offset), last = PageDown(end);
    if (block.state != CachedBlock::kFree || first >= last) {
      if (block.state == CachedBlock::kFree)
        list.erase({.stream = segment.stream, .bytes = block.bytes, .place = {id, offset}});
      add(offset, end, block);
      continue;
    }
    list.erase({.stream = segment.stream, .bytes = block.bytes, .place = {id, offset}});
    source_->Unmap(segment.data + first, last - first);
    released += last - first;
    add(offset, first, block);
    add(first, last, Block{.state = CachedBlock::kUnmapped});
    add(last, end, block);
  }
  if (!blocks.empty() && blocks.rbegin()->second.state == CachedBlock::kUnmapped) {
    blocks.erase(std::prev(blocks.end()));
  }
  segment.blocks = std::move(blocks);
  segment.bytes = segment.blocks.empty()
                      ? 0
                      : segment.blocks.rbegin()->first + segment.blocks.rbegin()->second.bytes;
  return released;
}

}  // namespace terrace
