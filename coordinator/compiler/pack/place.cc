// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack/place.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/compiler/pack/liveness.h"
#include "coordinator/compiler/pack/pack.h"
#include "coordinator/compiler/pack/pages.h"
#include "proto/program/loops.h"
#include "proto/program/tiers.h"

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

// When each buffer lives, by buffer: once, or in a loop's body once an iteration.
std::vector<std::vector<Life>> LivesIn(const v1::Program& program, const v1::Program& straight,
                                       const v1::Sequence& sequence,
                                       const std::vector<uint32_t>& original) {
  std::vector<std::vector<Life>> lives(program.buffers_size());
  const std::vector<Life> of_values = Liveness(straight, sequence);
  for (size_t i = 0; i < of_values.size(); ++i) {
    if (of_values[i].begin < of_values[i].end) lives[original[i]].push_back(of_values[i]);
  }
  for (std::vector<Life>& of_buffer : lives) {
    std::sort(of_buffer.begin(), of_buffer.end(),
              [](const Life& a, const Life& b) { return a.begin < b.begin; });
  }
  return lives;
}

// What a sequence needs of an arena behind its persistent buffers.
struct Region {
  std::vector<int> ids;  // of the buffers that are packed
  std::vector<PackBuffer> buffers;
  Packing packing;
  int64_t unused_bytes = 0;  // of the largest buffer that nobody uses: anywhere will do
  int64_t bytes() const { return std::max(unused_bytes, packing.arena_bytes); }
};

// Pages are used where they may be and an arena is over its lower bound by more than this share.
constexpr double kPagesOverBound = 0.01;

// Of the arena, so that the program fits its device; 0: there is no limit.
int64_t ArenaLimit(const v1::Program& program) {
  return program.device_limit_bytes() == 0
             ? 0
             : std::max<int64_t>(1, program.device_limit_bytes() - program.external_bytes());
}

// Packs the STEP buffers that `sequence` uses in `arena`.
absl::StatusOr<Region> PackStep(const v1::Program& program, const v1::Sequence& sequence,
                                const std::vector<std::vector<Life>>& lives, uint32_t arena) {
  Region region;
  const v1::Tier tier = program.arenas(static_cast<int>(arena)).tier();
  for (int i = 0; i < program.buffers_size(); ++i) {
    const v1::Buffer& buffer = program.buffers(i);
    if (buffer.lifetime() != v1::STEP || buffer.arena() != arena ||
        buffer.sequence() != sequence.name()) {
      continue;
    }
    if (lives[i].empty()) {
      region.unused_bytes = std::max(region.unused_bytes, AlignUp(buffer.bytes(), tier));
      continue;
    }
    region.ids.push_back(i);
    region.buffers.push_back({.name = buffer.name(),
                              .bytes = AlignUp(buffer.bytes(), tier),
                              .begin = lives[i].front().begin,
                              .end = lives[i].back().end});
    if (lives[i].size() == 1) continue;
    for (size_t k = 0; k < lives[i].size(); ++k) {
      const Life& life = lives[i][k];
      if (k > 0 && life.begin < lives[i][k - 1].end) {
        return absl::FailedPreconditionError(
            absl::StrCat("buffer '", buffer.name(), "' of '", sequence.name(),
                         "' holds values of two iterations at a time"));
      }
      region.buffers.back().lives.push_back({.begin = life.begin, .end = life.end});
    }
  }
  ASSIGN_OR_RETURN(region.packing, Pack(region.buffers));
  return region;
}

// Replaces the packing of `arena` by one with pages, where the policy says so and that needs less.
void PackPages(const v1::Program& program, int64_t base, PagePolicy pages,
               std::vector<Region>* regions, v1::Arena* arena) {
  const int64_t limit = ArenaLimit(program), bound = arena->lower_bound_bytes();
  const bool too_large = limit > 0 && arena->bytes() > limit;
  const bool loose =
      static_cast<double>(arena->bytes() - bound) > kPagesOverBound * static_cast<double>(bound);
  if (!too_large && (pages != PagePolicy::kWhereLoose || !loose)) return;
  const PageRules rules = {.base_bytes = base,
                           .page_bytes = PackPageBytes(program.device(), arena->bytes()),
                           .limit_bytes = limit};
  std::vector<PagedProblem> problems;
  for (const Region& region : *regions) {
    problems.push_back({MakePackProblem(region.buffers), region.packing.offsets});
  }
  std::optional<PagedPacking> packing = PackIntoPages(problems, rules);
  if (!packing.has_value()) return;
  for (size_t s = 0; s < regions->size(); ++s) {
    if (base + (*regions)[s].unused_bytes > packing->arena_bytes) return;
  }
  for (size_t s = 0; s < regions->size(); ++s) {
    (*regions)[s].packing.offsets = std::move(packing->offsets[s]);
  }
  arena->set_bytes(packing->arena_bytes);
  if (packing->runs.empty()) return;
  arena->set_page_bytes(rules.page_bytes);
  for (const PackPageRun& run : packing->runs) {
    v1::PageRun* alias = arena->add_aliases();
    alias->set_page(run.page);
    alias->set_pages(run.pages);
  }
}

absl::Status PlaceArena(const std::vector<std::vector<std::vector<Life>>>& lives, PagePolicy pages,
                        v1::Program* program, v1::Arena* arena) {
  const int64_t base = arena->bytes();
  std::vector<Region> regions;
  int64_t bytes = 0, bound = 0;
  for (int s = 0; s < program->sequences_size(); ++s) {
    ASSIGN_OR_RETURN(Region region,
                     PackStep(*program, program->sequences(s), lives[s], arena->id()));
    bytes = std::max(bytes, region.bytes());
    bound = std::max(bound, region.packing.lower_bound_bytes);
    regions.push_back(std::move(region));
  }
  arena->set_bytes(base + bytes);
  arena->set_lower_bound_bytes(base + bound);
  if (pages != PagePolicy::kNever && arena->tier() == v1::DEVICE)
    PackPages(*program, base, pages, &regions, arena);
  for (v1::Buffer& buffer : *program->mutable_buffers()) {
    if (buffer.lifetime() == v1::STEP && buffer.arena() == arena->id()) buffer.set_offset(base);
  }
  for (const Region& region : regions) {
    for (size_t k = 0; k < region.ids.size(); ++k) {
      program->mutable_buffers(region.ids[k])->set_offset(base + region.packing.offsets[k]);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PlaceBuffers(v1::Program* program, PagePolicy pages) {
  for (v1::Arena& arena : *program->mutable_arenas()) {
    arena.set_bytes(0);
    arena.clear_page_bytes();
    arena.clear_aliases();
  }
  RETURN_IF_ERROR(PlacePersistent(program));
  std::vector<std::vector<std::vector<Life>>> lives;  // by sequence and buffer
  if (HasLoops(*program)) {
    const WrittenOut straight = WriteOut(*program, IterationsToLeaveOut(*program));
    for (const v1::Sequence& sequence : straight.program.sequences())
      lives.push_back(LivesIn(*program, straight.program, sequence, straight.buffers));
  } else {
    std::vector<uint32_t> own(program->buffers_size());
    std::iota(own.begin(), own.end(), 0);
    for (const v1::Sequence& sequence : program->sequences())
      lives.push_back(LivesIn(*program, *program, sequence, own));
  }
  for (v1::Arena& arena : *program->mutable_arenas()) {
    RETURN_IF_ERROR(PlaceArena(lives, pages, program, &arena));
  }
  return absl::OkStatus();
}

}  // namespace terrace
