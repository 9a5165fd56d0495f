// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/place.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/compiler/liveness.h"
#include "coordinator/compiler/pack.h"
#include "proto/tiers.h"

namespace terrace {
namespace {

// Offsets are sums of sizes, so sizes that are multiples of it give offsets that are.
int64_t AlignUp(int64_t bytes, v1::Tier tier) {
  const int64_t alignment = ArenaAlignment(tier);
  return (bytes + alignment - 1) / alignment * alignment;
}

bool HasSequence(const v1::Program& program, const std::string& name) {
  return std::any_of(program.sequences().begin(), program.sequences().end(),
                     [&](const v1::Sequence& sequence) { return sequence.name() == name; });
}

absl::Status CheckBuffer(const v1::Program& program, const v1::Buffer& buffer) {
  if (buffer.arena() >= static_cast<uint32_t>(program.arenas_size())) {
    return absl::InvalidArgumentError(absl::StrCat("buffer '", buffer.name(), "': arena ",
                                                   buffer.arena(), " of ", program.arenas_size(),
                                                   " does not exist"));
  }
  if (buffer.bytes() < 1) {
    return absl::InvalidArgumentError(absl::StrCat("buffer '", buffer.name(), "': ", buffer.bytes(),
                                                   " bytes, must be at least 1"));
  }
  if (buffer.lifetime() == v1::STEP && !HasSequence(program, buffer.sequence())) {
    return absl::InvalidArgumentError(absl::StrCat("buffer '", buffer.name(), "': its sequence '",
                                                   buffer.sequence(), "' does not exist"));
  }
  return absl::OkStatus();
}

// Persistent buffers lie one after the other, in the order of their ids, from the start of their
// arena.
absl::Status PlacePersistent(v1::Program* program) {
  for (v1::Buffer& buffer : *program->mutable_buffers()) {
    RETURN_IF_ERROR(CheckBuffer(*program, buffer));
    if (buffer.lifetime() != v1::PERSISTENT) continue;
    v1::Arena* arena = program->mutable_arenas(buffer.arena());
    buffer.set_offset(arena->bytes());
    arena->set_bytes(arena->bytes() + AlignUp(buffer.bytes(), arena->tier()));
  }
  return absl::OkStatus();
}

struct Region {
  int64_t bytes = 0;
  int64_t lower_bound_bytes = 0;
};

// Packs the STEP buffers that `sequence` uses in `arena` into the space from `base` on.
absl::StatusOr<Region> PlaceStep(const v1::Sequence& sequence, const std::vector<Life>& lives,
                                 uint32_t arena, int64_t base, PackEffort effort,
                                 v1::Program* program) {
  std::vector<PackBuffer> buffers;
  std::vector<int> ids;
  Region region;
  const v1::Tier tier = program->arenas(static_cast<int>(arena)).tier();
  for (int i = 0; i < program->buffers_size(); ++i) {
    v1::Buffer* buffer = program->mutable_buffers(i);
    if (buffer->lifetime() != v1::STEP || buffer->arena() != arena ||
        buffer->sequence() != sequence.name()) {
      continue;
    }
    if (lives[i].begin == lives[i].end) {  // never used: anywhere will do
      buffer->set_offset(base);
      region.bytes = std::max(region.bytes, AlignUp(buffer->bytes(), tier));
      continue;
    }
    buffers.push_back({.name = buffer->name(),
                       .bytes = AlignUp(buffer->bytes(), tier),
                       .begin = lives[i].begin,
                       .end = lives[i].end});
    ids.push_back(i);
  }
  ASSIGN_OR_RETURN(const Packing packing, Pack(buffers, effort, base));
  for (size_t k = 0; k < ids.size(); ++k) {
    program->mutable_buffers(ids[k])->set_offset(base + packing.offsets[k]);
  }
  region.bytes = std::max(region.bytes, packing.arena_bytes);
  region.lower_bound_bytes = packing.lower_bound_bytes;
  return region;
}

}  // namespace

absl::Status PlaceBuffers(v1::Program* program, PackEffort effort) {
  for (v1::Arena& arena : *program->mutable_arenas()) arena.set_bytes(0);
  RETURN_IF_ERROR(PlacePersistent(program));
  std::vector<std::vector<Life>> lives;
  for (const v1::Sequence& sequence : program->sequences())
    lives.push_back(Liveness(*program, sequence));
  for (v1::Arena& arena : *program->mutable_arenas()) {
    const int64_t base = arena.bytes();
    Region largest;
    for (int s = 0; s < program->sequences_size(); ++s) {
      ASSIGN_OR_RETURN(const Region region, PlaceStep(program->sequences(s), lives[s], arena.id(),
                                                      base, effort, program));
      largest.bytes = std::max(largest.bytes, region.bytes);
      largest.lower_bound_bytes = std::max(largest.lower_bound_bytes, region.lower_bound_bytes);
    }
    arena.set_bytes(base + largest.bytes);
    arena.set_lower_bound_bytes(base + largest.lower_bound_bytes);
  }
  return absl::OkStatus();
}

}  // namespace terrace
