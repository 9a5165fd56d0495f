// SPDX-License-Identifier: Apache-2.0
#include "coordinator/simulator/cache_reuse.h"

#include <algorithm>
#include <list>
#include <unordered_map>

#include "kernels/tensor_view.h"
#include "proto/program/allocation_events.h"
#include "proto/program/op_codec.h"

namespace terrace {
namespace {

constexpr int64_t kBlocksOfCache = 512;  // fine enough for the operands that matter to it
constexpr int64_t kBlockBytesMin = 4096;

// Blocks of arenas, of which the one touched longest ago makes room.
class Cache {
 public:
  Cache(const v1::Program& program, int64_t bytes)
      : program_(program),
        bytes_(bytes),
        block_(std::max(kBlockBytesMin, bytes / kBlocksOfCache)),
        blocks_max_(static_cast<size_t>(std::max<int64_t>(1, bytes / block_))) {}

  // The bytes of the operand that are found; they are touched now.
  int64_t Touch(const v1::Operand& operand, int64_t size) {
    if (!GoesThrough(operand)) return 0;
    // What is larger than the cache has lost its beginning when its end has come.
    if (size > bytes_) {
      blocks_.clear();
      places_.clear();
      return 0;
    }
    int64_t found = 0;
    ForBlocks(operand, size, [&](Block block, int64_t part) {
      if (Renew(block)) found += part;
    });
    return found;
  }

  void Forget(const v1::Operand& operand, int64_t size) {
    if (!GoesThrough(operand) || size > bytes_) return;  // what it is copied from clears the cache
    ForBlocks(operand, size, [&](Block block, int64_t) {
      const auto place = places_.find(block);
      if (place == places_.end()) return;
      blocks_.erase(place->second);
      places_.erase(place);
    });
  }

 private:
  using Block = uint64_t;  // arena, then the offset in blocks

  bool Renew(Block block) {
    const auto [place, is_new] = places_.try_emplace(block);
    if (!is_new) {
      blocks_.splice(blocks_.begin(), blocks_, place->second);
      return true;
    }
    place->second = blocks_.insert(blocks_.begin(), block);
    if (blocks_.size() > blocks_max_) {
      places_.erase(blocks_.back());
      blocks_.pop_back();
    }
    return false;
  }

  // A drive goes past the cache.
  bool GoesThrough(const v1::Operand& operand) const {
    if (operand.buffer() >= static_cast<uint32_t>(program_.buffers_size())) return false;
    const v1::Buffer& buffer = program_.buffers(static_cast<int>(operand.buffer()));
    if (buffer.arena() >= static_cast<uint32_t>(program_.arenas_size())) return false;
    const v1::Tier tier = program_.arenas(static_cast<int>(buffer.arena())).tier();
    return tier == v1::DEVICE || tier == v1::HOST;
  }

  // REQUIRES: GoesThrough(operand).
  template <typename Visit>
  void ForBlocks(const v1::Operand& operand, int64_t size, const Visit& visit) {
    const v1::Buffer& buffer = program_.buffers(static_cast<int>(operand.buffer()));
    // What gets its place while the step runs shares it with others that nobody knows here.
    const Block of = IsDynamic(program_, buffer) ? Block{1} << 63 | Block{operand.buffer()} << 30
                                                 : Block{buffer.arena()} << 40;
    int64_t at = buffer.offset() + operand.offset();
    const int64_t end = at + size;
    while (at < end) {
      const int64_t next = std::min(end, (at / block_ + 1) * block_);
      visit(of | static_cast<Block>(at / block_), next - at);
      at = next;
    }
  }

  const v1::Program& program_;
  const int64_t bytes_, block_;
  const size_t blocks_max_;
  std::list<Block> blocks_;  // touched last first
  std::unordered_map<Block, std::list<Block>::iterator> places_;
};

}  // namespace

std::vector<double> CachedShares(const v1::Program& program, const v1::Sequence& sequence,
                                 int64_t cache_bytes) {
  std::vector<double> shares(sequence.instructions_size());
  if (cache_bytes <= 0) return shares;
  Cache cache(program, cache_bytes);
  constexpr int kSteps = 2;  // the second finds what the first has left
  for (int step = 0; step < kSteps; ++step) {
    for (int i = 0; i < sequence.instructions_size(); ++i) {
      const v1::Instruction& instruction = sequence.instructions(i);
      int64_t bytes = 0, found = 0;
      const auto touch = [&](const v1::Operand& operand) {
        const absl::StatusOr<kernels::TensorShape> shape = DecodeShape(operand);
        const int64_t size = shape.ok() ? shape->SpanBytes() : 0;
        if (size <= 0) return;
        if (instruction.has_copy() && operand.access() == v1::WRITE) {
          cache.Forget(operand, size);
          return;
        }
        bytes += size;
        found += cache.Touch(operand, size);
      };
      for (const v1::Operand& operand : instruction.operands()) touch(operand);
      if (instruction.compute().has_workspace()) touch(instruction.compute().workspace());
      shares[i] = bytes > 0 ? static_cast<double>(found) / static_cast<double>(bytes) : 0;
    }
  }
  return shares;
}

}  // namespace terrace
