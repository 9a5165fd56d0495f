// The caching allocator: best fit among blocks cut from segments that are kept, per stream.
//
// In: sizes and the stream that uses the block first. Out: addresses. A free block serves only its
// own stream, where list order says that earlier uses are over. Life of a block: Allocate, then
// Free once its own stream has been given all uses; where other streams use it too, Retire then and
// Free when these have finished. Free neighbours of a segment merge. Segments stay until memory
// runs out; then all that are wholly free go back and the request is tried once more. Where
// segments expand (policy.h) each stream has one a pool: it grows where it must, without moving
// anything, and gives back every page that is free. It never looks into the memory: with
// CountedSegments it tells what a run would reserve. Figures: docs/allocators.md.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/caching/policy.h"
#include "proto/caching/segments.h"
#include "proto/caching/statistics.h"

namespace terrace {

struct CachingOptions {
  CachingPolicy policy;
  int64_t limit_bytes = int64_t{1} << 60;  // of all segments
  // Called when memory has run out, before segments go back: must return only when the streams have
  // finished all that they were given, and may Free retired blocks. Empty: nothing to wait for.
  std::function<void()> finish_streams;
  // False: segments go back only when the owner says so (ReleaseCached).
  bool release_when_full = true;
};

struct CachedBlock {
  std::byte* data = nullptr;
  int64_t bytes = 0;
  int64_t requested = 0;
  // kUnmapped: addresses without memory, in a segment that expands.
  enum State { kFree, kAllocated, kRetired, kUnmapped } state = kFree;
};
struct CachedSegment {
  std::byte* data = nullptr;
  int64_t bytes = 0;  // of addresses: those that are not unmapped are memory
  uint32_t stream = 0;
  CachingPool pool = CachingPool::kSmall;
  std::vector<CachedBlock> blocks;  // by address, without gaps
};

// Which block serves a request depends on the requests alone, never on the addresses that the
// source gives. Borrows the source. Thread-compatible.
class BlockCache {
 public:
  explicit BlockCache(SegmentSource* source, CachingOptions options = {});
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;
  // REQUIRES: no stream uses any block.
  ~BlockCache();

  // INVALID_ARGUMENT without bytes; RESOURCE_EXHAUSTED with what is held when even a retry fails.
  // Aligned to 512 bytes, content undefined.
  absl::StatusOr<std::byte*> Allocate(int64_t bytes, uint32_t stream);
  // INVALID_ARGUMENT, and nothing changes, unless Allocate gave `data` and it was neither retired
  // nor freed since.
  absl::Status Retire(std::byte* data);
  // The same, but retired blocks are welcome.
  absl::Status Free(std::byte* data);

  // Gives back all segments that are wholly free, or all free pages, after finish_streams; their
  // bytes.
  int64_t ReleaseCached();

  void BeginStep() { statistics_.BeginStep(); }
  CachingStatistics statistics() const;
  std::vector<CachedSegment> Snapshot() const;  // in the order of their reservation

 private:
  struct Block {
    int64_t bytes = 0;
    int64_t requested = 0;
    CachedBlock::State state = CachedBlock::kFree;
  };
  struct Segment {
    std::byte* data = nullptr;
    int64_t bytes = 0;
    uint32_t stream = 0;
    CachingPool pool = CachingPool::kSmall;
    std::map<int64_t, Block> blocks;  // by offset, without gaps
    int64_t range_bytes = 0;          // that it may grow to; 0: it does not
  };
  // Pages of a segment that are to be mapped.
  struct Piece {
    int64_t offset = 0;
    int64_t bytes = 0;
  };
  // Where a request may lie once these are.
  struct Room {
    int64_t offset = 0;
    int64_t bytes = 0;  // of the pieces
    std::vector<Piece> pieces;
  };
  using Place = std::pair<uint64_t, int64_t>;  // segment, offset
  struct FreeBlock {
    uint32_t stream = 0;
    int64_t bytes = 0;
    Place place;  // instead of the address, which differs from run to run
    bool operator<(const FreeBlock& other) const {
      return std::tie(stream, bytes, place) < std::tie(other.stream, other.bytes, other.place);
    }
  };
  using FreeList = std::set<FreeBlock>;

  FreeList& ListOf(CachingPool pool) { return free_[pool == CachingPool::kLarge]; }
  // False: neither a free block nor a segment is to be had; `why` then says what refused.
  absl::StatusOr<bool> Find(int64_t bytes, uint32_t stream, FreeBlock* found, std::string* why);
  absl::StatusOr<bool> Reserve(int64_t bytes, uint32_t stream, FreeBlock* found, std::string* why);
  std::byte* Take(const FreeBlock& found, int64_t bytes, int64_t requested);
  void MergeInto(uint64_t id, std::map<int64_t, Block>::iterator block);
  absl::Status Refuse(int64_t bytes, uint32_t stream, const std::string& why);

  // expand.cc
  absl::StatusOr<bool> Grow(int64_t bytes, uint32_t stream, FreeBlock* found, std::string* why);
  absl::StatusOr<uint64_t> GrowingSegment(uint32_t stream, CachingPool pool);
  static Room FindRoom(const Segment& segment, int64_t bytes);
  absl::Status MapAll(const Segment& segment, const std::vector<Piece>& pieces);
  void AddMapped(uint64_t id, const Piece& piece);
  int64_t ReleasePages(uint64_t id);

  SegmentSource* source_;
  CachingOptions options_;
  std::map<uint64_t, Segment> segments_;  // by number, which is never used again
  uint64_t next_segment_ = 0;
  FreeList free_[2];                  // small, large
  std::map<std::byte*, Place> held_;  // blocks that are not free
  CachingStatistics statistics_;      // largest_free_block_bytes: only when asked
};

}  // namespace terrace
