// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/memory_report.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/text/number_format.h"
#include "proto/program/caching_need.h"
#include "worker/rank/memory_classes.h"

namespace terrace {
namespace {

int64_t LimitOf(const v1::Program& program, v1::Tier tier) {
  switch (tier) {
    case v1::DEVICE:
      return program.device_limit_bytes();
    case v1::HOST:
      return program.host_limit_bytes();
    case v1::NVME:
      return program.nvme_limit_bytes();
    default:
      return 0;
  }
}

std::string TierText(const PreparedMemory& rank, v1::Tier tier) {
  std::string text = absl::StrCat(absl::AsciiStrToLower(v1::Tier_Name(tier)), " ",
                                  FormatBytes(rank.memory.reserved_bytes(tier)));
  if (const int64_t limit = LimitOf(rank.program, tier); limit > 0)
    absl::StrAppend(&text, " of ", FormatBytes(limit));
  if (tier == v1::DEVICE) {
    absl::StrAppend(&text, ", outside of it ", FormatBytes(rank.external_bytes), " (allowed ",
                    FormatBytes(rank.program.external_bytes()),
                    rank.graph_bytes > 0
                        ? absl::StrCat(", graphs took ", FormatBytes(rank.graph_bytes), " of it")
                        : "",
                    ")");
  }
  if (tier == v1::HOST)
    absl::StrAppend(&text, rank.memory.pinned_bytes() > 0 ? "" : " not", " locked");
  return text;
}

}  // namespace

std::string MemoryLine(const PreparedMemory& rank) {
  std::string line = absl::StrCat("memory: ", TierText(rank, v1::DEVICE));
  for (const v1::Tier tier : {v1::HOST, v1::NVME}) {
    if (rank.memory.reserved_bytes(tier) > 0) absl::StrAppend(&line, "; ", TierText(rank, tier));
  }
  return line;
}

absl::StatusOr<int64_t> MeasureExternal(const v1::Program& program, const ProgramMemory& memory,
                                        RendezvousStore* store, Backend* backend, Vm* vm,
                                        Agreement* agreement) {
  const int64_t reserved = memory.reserved_bytes(v1::DEVICE);
  ASSIGN_OR_RETURN(const int64_t with_graphs, backend->ExternalBytes(reserved, store));
  if (backend->device_is_host()) return with_graphs;
  const bool fits = CheckDeviceLimit({program, memory, with_graphs}).ok();
  bool no_room = !fits;
  std::vector<bool> lacking = vm->LacksCollectiveGraphs();
  if (agreement != nullptr) {
    ASSIGN_OR_RETURN(no_room, agreement->Any(no_room));
    ASSIGN_OR_RETURN(lacking, agreement->AnyOfEach(lacking));
  }
  const bool dropped = no_room && vm->DropGraphs();
  const bool dropped_collectives = vm->DropCollectiveGraphs(lacking);
  // Also a rank that had none: others on its device may have given back theirs.
  ASSIGN_OR_RETURN(const int64_t bytes, backend->ExternalBytes(reserved, store));
  if (dropped) {
    log::Warn("instructions are launched one by one, slower than as graphs, which take ",
              FormatBytes(with_graphs - bytes), " of the device: beside the arena of ",
              FormatBytes(reserved), " and ", FormatBytes(bytes), " outside of it ",
              fits ? "another rank's " : "", "resources.device_memory (",
              FormatBytes(program.device_limit_bytes()), ") has no room for that; raise it");
  }
  if (dropped_collectives) {
    log::Warn(
        "steps with collectives are launched one by one, slower than as graphs: another rank "
        "has no such graph; why not is in that rank's log");
  }
  return bytes;
}

absl::Status CheckDeviceLimit(const PreparedMemory& rank) {
  const int64_t reserved = rank.memory.reserved_bytes(v1::DEVICE);
  const int64_t limit = LimitOf(rank.program, v1::DEVICE);
  if (limit == 0 || reserved + rank.external_bytes <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the rank needs ", FormatBytes(reserved),
      rank.memory.dynamic() != nullptr
          ? " of device arena and segments of the caching allocator and "
          : " of device arena and ",
      FormatBytes(rank.external_bytes), " outside of the arenas, resources.device_memory allows ",
      FormatBytes(limit), "; raise it or offload more",
      rank.memory.dynamic() != nullptr ? ", or layout.allocator planned, which needs less" : ""));
}

v1::RankMetrics MemoryMetrics(const PreparedMemory& rank) {
  v1::RankMetrics metrics;
  for (const v1::ClassBytes& line : MemoryClasses(rank.program)) *metrics.add_memory() = line;
  metrics.set_arena_predicted_bytes(ReservedBytesNeeded(rank.program, v1::DEVICE));
  metrics.set_arena_reserved_bytes(rank.memory.reserved_bytes(v1::DEVICE));
  metrics.set_external_bytes(rank.external_bytes);
  metrics.set_graph_bytes(rank.graph_bytes);
  metrics.set_limit_bytes(rank.program.device_limit_bytes());
  metrics.set_host_reserved_bytes(rank.memory.reserved_bytes(v1::HOST));
  metrics.set_host_pinned_bytes(rank.memory.pinned_bytes());
  metrics.set_nvme_reserved_bytes(rank.memory.reserved_bytes(v1::NVME));
  *metrics.mutable_allocator() = rank.memory.dynamic() != nullptr ? rank.memory.dynamic()->stats()
                                                                  : PlannedStats(rank.program);
  return metrics;
}

void RecordMemory(const v1::Program& program, const ProgramMemory& memory, FlightWriter* flight) {
  for (const v1::Arena& arena : program.arenas())
    flight->Reserved(arena.tier(), memory.reserved_bytes(arena.tier()));
  flight->SetPinned(memory.pinned_bytes());
}

}  // namespace terrace
