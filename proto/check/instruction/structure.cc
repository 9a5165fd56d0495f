// SPDX-License-Identifier: Apache-2.0
#include "proto/check/instruction/structure.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "kernels/tensor_view.h"
#include "proto/check/instruction/dynamic.h"
#include "proto/check/instruction/refuse.h"
#include "proto/program/allocation_events.h"
#include "proto/program/arena_pages.h"
#include "proto/program/grid.h"
#include "proto/program/tiers.h"

namespace terrace::check {
namespace {

absl::Status CheckCounts(const v1::Program& program) {
  if (program.stages() < 1 || program.stage() >= program.stages()) {
    return Refuse("stage ", program.stage(), " of ", program.stages(),
                  ": must be below the number of stages");
  }
  if (program.ranks() < 1 || program.ranks() > kRanksMax) {
    return Refuse("ranks: got ", program.ranks(), ", must be 1 to ", kRanksMax);
  }
  if (program.threads() < 1 || program.threads() > kThreadsMax) {
    return Refuse("threads: got ", program.threads(), ", must be 1 to ", kThreadsMax);
  }
  const struct {
    const char* what;
    int count;
    int max;
  } limits[] = {{"arenas", program.arenas_size(), kArenasMax},
                {"buffers", program.buffers_size(), kBuffersMax},
                {"streams", program.streams_size(), kStreamsMax},
                {"groups", program.groups_size(), kGroupsMax},
                {"sequences", program.sequences_size(), kSequencesMax}};
  for (const auto& limit : limits) {
    if (limit.count > limit.max)
      return Refuse(limit.what, ": got ", limit.count, ", at most ", limit.max);
  }
  return absl::OkStatus();
}

// Second addresses are whole pages of the arena's own memory.
absl::Status CheckPages(const v1::Program& program, const v1::Arena& arena) {
  const int64_t page = arena.page_bytes();
  if (page == 0 && arena.aliases().empty()) return absl::OkStatus();
  if (arena.tier() != v1::DEVICE || UsesCaching(program)) {
    return Refuse("arena ", arena.id(), ": pages at second addresses are for DEVICE, ",
                  "with the planned allocator");
  }
  if (page < kPageBytesMin || page > kPageBytesMax || (page & (page - 1)) != 0) {
    return Refuse("arena ", arena.id(), ": page_bytes: got ", page,
                  ", must be a power of two from ", kPageBytesMin, " to ", kPageBytesMax);
  }
  if (arena.bytes() % page != 0) {
    return Refuse("arena ", arena.id(), ": ", arena.bytes(), " bytes are no whole pages of ", page);
  }
  if (arena.aliases_size() > kPageRunsMax) {
    return Refuse("arena ", arena.id(), ": got ", arena.aliases_size(), " runs of pages, at most ",
                  kPageRunsMax);
  }
  const int64_t pages = arena.bytes() / page;
  int64_t second = 0;
  for (int i = 0; i < arena.aliases_size(); ++i) {
    const v1::PageRun& run = arena.aliases(i);
    if (run.pages() < 1 || run.pages() > pages || run.page() < 0 ||
        run.page() > pages - run.pages()) {
      return Refuse("arena ", arena.id(), ": run ", i, ": pages [", run.page(), ", +", run.pages(),
                    ") must lie inside its ", pages);
    }
    second += run.pages();
  }
  if (second > (kBytesMax - arena.bytes()) / page) {
    return Refuse("arena ", arena.id(), ": ", second, " pages of ", page,
                  " bytes at second addresses, all addresses at most ", kBytesMax);
  }
  return absl::OkStatus();
}

// One arena a tier, the first on the device.
absl::Status CheckArenas(const v1::Program& program) {
  std::set<int> tiers;
  for (int i = 0; i < program.arenas_size(); ++i) {
    const v1::Arena& arena = program.arenas(i);
    if (arena.id() != static_cast<uint32_t>(i))
      return Refuse("arena ", i, ": its id is ", arena.id(), ", must be its position");
    if (!v1::Tier_IsValid(arena.tier()) || arena.tier() == v1::TIER_UNSPECIFIED) {
      return Refuse("arena ", i, ": tier ", arena.tier(), " does not exist");
    }
    if (arena.bytes() < 0 || arena.bytes() > kBytesMax) {
      return Refuse("arena ", i, ": got ", arena.bytes(), " bytes, must be 0 to ", kBytesMax);
    }
    if (i == 0 && arena.tier() != v1::DEVICE) {
      return Refuse("arena 0: lies on ", v1::Tier_Name(arena.tier()), ", the first is DEVICE");
    }
    RETURN_IF_ERROR(CheckPages(program, arena));
    if (!tiers.insert(arena.tier()).second) {
      return Refuse("arena ", i, ": is the second on ", v1::Tier_Name(arena.tier()),
                    ", a tier has at most one");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBudgets(const v1::Program& program) {
  if (program.external_bytes() < 0 || program.external_bytes() > kBytesMax) {
    return Refuse("external_bytes: got ", program.external_bytes(), ", must be 0 to ", kBytesMax);
  }
  const struct {
    v1::Tier tier;
    const char* limit_name;
    int64_t limit;
    int64_t besides;
  } budgets[] = {
      {v1::DEVICE, "device_limit_bytes", program.device_limit_bytes(), program.external_bytes()},
      {v1::HOST, "host_limit_bytes", program.host_limit_bytes(), 0},
      {v1::NVME, "nvme_limit_bytes", program.nvme_limit_bytes(), 0}};
  for (const auto& budget : budgets) {
    if (budget.limit < 0) {
      return Refuse(budget.limit_name, ": got ", budget.limit, ", must not be negative");
    }
    int64_t bytes = budget.besides;
    for (const v1::Arena& arena : program.arenas()) {
      if (arena.tier() == budget.tier) bytes += arena.bytes();
    }
    if (budget.limit == 0 || bytes <= budget.limit) continue;
    return Refuse("the ", v1::Tier_Name(budget.tier), " arena",
                  budget.tier == v1::DEVICE ? " and external_bytes need " : " needs ", bytes,
                  " bytes, ", budget.limit_name, " is ", budget.limit);
  }
  return absl::OkStatus();
}

absl::Status CheckStreams(const v1::Program& program) {
  if (!program.device().empty() && program.device() != "cpu" && program.device() != "cuda")
    return Refuse("device: got '", program.device(), "', must be cpu or cuda");
  for (int i = 0; i < program.streams_size(); ++i) {
    const v1::Stream& stream = program.streams(i);
    if (!v1::StreamKind_IsValid(stream.kind()) || stream.kind() == v1::STREAM_UNSPECIFIED) {
      return Refuse("stream ", i, " '", stream.name(), "': kind ", stream.kind(),
                    " does not exist");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckGrid(const v1::Program& program) {
  const v1::Grid& grid = program.grid();
  for (uint32_t size :
       {grid.tensor(), grid.context(), grid.data_shard(), grid.data_replica(), grid.pipeline()}) {
    if (size > kRanksMax) return Refuse("grid: an axis of ", size, " ranks, at most ", kRanksMax);
  }
  // Cut at every factor: five sizes of at most 2^20 would overflow.
  uint64_t ranks = 1;
  for (v1::Axis axis : {v1::TENSOR, v1::CONTEXT, v1::DATA_SHARD, v1::DATA_REPLICA, v1::PIPELINE}) {
    ranks = std::min<uint64_t>(ranks * AxisSize(grid, axis), uint64_t{kRanksMax} + 1);
  }
  if (ranks != program.ranks()) {
    return Refuse("grid: its axes make ", ranks, " ranks, the program says ", program.ranks());
  }
  if (AxisSize(grid, v1::PIPELINE) != program.stages()) {
    return Refuse("grid: pipeline is ", AxisSize(grid, v1::PIPELINE), ", the program says ",
                  program.stages(), " stages");
  }
  return absl::OkStatus();
}

absl::Status CheckGroupStages(const v1::Program& program, const v1::Group& group,
                              const std::string& where) {
  if (group.stages_size() > 0 && !HasAxis(group, v1::PIPELINE)) {
    return Refuse(where, ": names stages and is no group of the axis PIPELINE");
  }
  std::set<uint32_t> seen;
  for (uint32_t stage : group.stages()) {
    if (stage >= program.stages()) {
      return Refuse(where, ": stage ", stage, " of ", program.stages(), " does not exist");
    }
    if (!seen.insert(stage).second) return Refuse(where, ": stage ", stage, " is there twice");
  }
  return absl::OkStatus();
}

// Blocks of one rank, or of all, are no parts of anything.
absl::Status CheckPartOfShards(const v1::Program& program, const v1::Group& group,
                               const std::string& where) {
  if (!IsOfPartOfShards(group)) return absl::OkStatus();
  const uint32_t shards = AxisSize(program.grid(), v1::DATA_SHARD);
  const uint32_t block = group.shard_block() > 0 ? group.shard_block() : group.shard_stride();
  if (group.shard_block() > 0 && group.shard_stride() > 0)
    return Refuse(where, ": has shard_block and shard_stride, must have one of them at most");
  if (HasAxis(group, v1::DATA_SHARD) && block > 1 && block < shards && shards % block == 0)
    return absl::OkStatus();
  return Refuse(where, ": ", group.shard_block() > 0 ? "shard_block " : "shard_stride ", block,
                " must be between 1 and the ", shards,
                " ranks of the axis DATA_SHARD, one of its axes, and divide them");
}

absl::Status CheckGroup(const v1::Program& program, const v1::Group& group) {
  const std::string where = absl::StrCat("group '", group.name(), "'");
  if (group.axes().empty()) return Refuse(where, ": has no axes");
  std::set<int> seen;
  for (int axis : group.axes()) {
    if (!v1::Axis_IsValid(axis) || axis == v1::AXIS_UNSPECIFIED) {
      return Refuse(where, ": axis ", axis, " does not exist");
    }
    if (!seen.insert(axis).second) {
      return Refuse(where, ": axis ", v1::Axis_Name(static_cast<v1::Axis>(axis)),
                    " is there twice");
    }
  }
  RETURN_IF_ERROR(CheckGroupStages(program, group, where));
  RETURN_IF_ERROR(CheckPartOfShards(program, group, where));
  if (group.tensor_block() == 0) return absl::OkStatus();
  const uint32_t tensor = AxisSize(program.grid(), v1::TENSOR);
  if (!HasAxis(group, v1::TENSOR) || tensor % group.tensor_block() != 0) {
    return Refuse(where, ": tensor_block ", group.tensor_block(), " must divide the ", tensor,
                  " ranks of the axis TENSOR, one of its axes");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::set<std::string>> SequenceNames(const v1::Program& program) {
  std::set<std::string> names;
  for (const v1::Sequence& sequence : program.sequences()) {
    if (sequence.name().empty()) return Refuse("a sequence has no name");
    if (!names.insert(sequence.name()).second) {
      return Refuse("sequence '", sequence.name(), "' is there twice");
    }
    if (sequence.instructions_size() > kInstructionsMax) {
      return Refuse("sequence '", sequence.name(), "': got ", sequence.instructions_size(),
                    " instructions, at most ", kInstructionsMax);
    }
  }
  return names;
}

// Bytes that a tensor of this shape takes; -1 when the shape or the type is not sane.
int64_t TensorBytes(const v1::Buffer& buffer) {
  if (!v1::DType_IsValid(buffer.dtype()) || buffer.dtype() == v1::DTYPE_UNSPECIFIED) return -1;
  int64_t bytes = kernels::SizeOf(static_cast<kernels::DType>(buffer.dtype()));
  for (int64_t size : buffer.shape()) {
    if (size < 1 || size > kBytesMax / bytes) return -1;
    bytes *= size;
  }
  return bytes;
}

absl::Status CheckPosition(const v1::Program& program, const v1::Buffer& buffer,
                           const std::string& where) {
  if (buffer.arena() >= static_cast<uint32_t>(program.arenas_size())) {
    return Refuse(where, ": arena ", buffer.arena(), " of ", program.arenas_size(),
                  " does not exist");
  }
  // What persists is read and written by others than instructions, who know nothing of pages.
  const v1::Arena& arena = program.arenas(static_cast<int>(buffer.arena()));
  const int64_t addresses =
      buffer.lifetime() == v1::PERSISTENT ? arena.bytes() : AddressBytes(arena);
  const int64_t alignment = ArenaAlignment(TierOf(program, buffer));
  if (buffer.bytes() < 1)
    return Refuse(where, ": got ", buffer.bytes(), " bytes, must be at least 1");
  if (IsDynamic(program, buffer)) {
    if (buffer.offset() == 0 && buffer.bytes() <= kBytesMax) return absl::OkStatus();
    return Refuse(where, ": offset ", buffer.offset(), " and ", buffer.bytes(),
                  " bytes, with the caching allocator must be 0 and at most ", kBytesMax);
  }
  if (buffer.offset() < 0 || buffer.offset() % alignment != 0) {
    return Refuse(where, ": offset ", buffer.offset(), " must be a multiple of ", alignment, " on ",
                  v1::Tier_Name(TierOf(program, buffer)));
  }
  if (buffer.offset() > addresses || buffer.bytes() > addresses - buffer.offset()) {
    return Refuse(where, ": bytes [", buffer.offset(), ", +", buffer.bytes(),
                  ") must lie inside arena ", buffer.arena(), " of ", addresses, " bytes",
                  addresses > arena.bytes() ? " of addresses" : "");
  }
  return absl::OkStatus();
}

absl::Status CheckBuffer(const v1::Program& program, int id,
                         const std::set<std::string>& sequences) {
  const v1::Buffer& buffer = program.buffers(id);
  if (buffer.id() != static_cast<uint32_t>(id)) {
    return Refuse("buffer ", id, " '", buffer.name(), "': its id is ", buffer.id(),
                  ", must be its position");
  }
  const std::string where = BufferText(program, id);
  if (!v1::BufferClass_IsValid(buffer.class_()) ||
      buffer.class_() == v1::BUFFER_CLASS_UNSPECIFIED || buffer.class_() == v1::EXTERNAL) {
    return Refuse(where, ": class ", buffer.class_(), " is none that lies in an arena");
  }
  RETURN_IF_ERROR(CheckPosition(program, buffer, where));
  const int64_t tensor_bytes = TensorBytes(buffer);
  if (tensor_bytes < 0) return Refuse(where, ": its type or shape is not valid");
  if (tensor_bytes > buffer.bytes()) {
    return Refuse(where, ": its shape takes ", tensor_bytes, " bytes, it has ", buffer.bytes());
  }
  switch (buffer.lifetime()) {
    case v1::PERSISTENT:
      if (!buffer.sequence().empty())
        return Refuse(where, ": is persistent, must not belong to a sequence");
      return absl::OkStatus();
    case v1::STEP:
      if (buffer.class_() == v1::KEY_VALUE_CACHE)
        return Refuse(where, ": keeps keys and values, must be persistent");
      if (sequences.contains(buffer.sequence())) return absl::OkStatus();
      return Refuse(where, ": its sequence '", buffer.sequence(), "' does not exist");
    default:
      return Refuse(where, ": lifetime ", buffer.lifetime(), " must be PERSISTENT or STEP");
  }
}

}  // namespace

absl::Status CheckStructure(const v1::Program& program) {
  RETURN_IF_ERROR(CheckCounts(program));
  RETURN_IF_ERROR(CheckGrid(program));
  RETURN_IF_ERROR(CheckArenas(program));
  RETURN_IF_ERROR(CheckAllocator(program));
  RETURN_IF_ERROR(CheckBudgets(program));
  RETURN_IF_ERROR(CheckStreams(program));
  for (const v1::Group& group : program.groups()) RETURN_IF_ERROR(CheckGroup(program, group));
  ASSIGN_OR_RETURN(const std::set<std::string> sequences, SequenceNames(program));
  for (int i = 0; i < program.buffers_size(); ++i) {
    RETURN_IF_ERROR(CheckBuffer(program, i, sequences));
  }
  return absl::OkStatus();
}

}  // namespace terrace::check
