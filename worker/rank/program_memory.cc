// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/program_memory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/text/number_format.h"
#include "proto/program/allocation_events.h"
#include "proto/program/caching_need.h"
#include "proto/program/sequences.h"

namespace terrace {
namespace {

// Of the device arena, where it lies in RAM.
int64_t DeviceRamBytes(const v1::Program& program) {
  return program.device() == "cuda" ? 0 : ReservedBytesNeeded(program, v1::DEVICE);
}

// "1.5 GiB of RAM (512.0 MiB device, 1.0 GiB host)".
std::string RamText(int64_t device, int64_t host) {
  return absl::StrCat(FormatBytes(device + host), " of RAM (", FormatBytes(device), " device, ",
                      FormatBytes(host), " host)");
}

// ", after 1.5 GiB for other ranks of this job here"; empty where there are none.
std::string TakenText(const HostLimits& limits) {
  if (limits.taken_bytes == 0) return "";
  return absl::StrCat(" after ", FormatBytes(limits.taken_bytes),
                      " for this job's other ranks here");
}

ArenaExtent ExtentOf(const v1::Arena& arena) {
  ArenaExtent extent = {.bytes = arena.bytes(), .page_bytes = arena.page_bytes()};
  for (const v1::PageRun& run : arena.aliases()) extent.runs.push_back({run.page(), run.pages()});
  return extent;
}

// Of a job: what lets more rest elsewhere. Of a checkpoint that generates or is evaluated: less.
const char* UseLess(const v1::Program& program) {
  const bool trains =
      std::any_of(program.sequences().begin(), program.sequences().end(),
                  [](const v1::Sequence& sequence) { return IsTrain(sequence.name()); });
  if (trains)
    return "lower resources.device_memory or resources.host_memory so that more is offloaded, or ";
  return "ask for fewer texts at a time or for shorter ones, or ";
}

}  // namespace

int64_t RamBytes(const v1::Program& program) {
  return DeviceRamBytes(program) + ReservedBytesNeeded(program, v1::HOST);
}

absl::Status CheckHostLimits(const v1::Program& program, const HostLimits& limits) {
  const int64_t device = DeviceRamBytes(program);
  const int64_t host = ReservedBytesNeeded(program, v1::HOST);
  if (program.host_limit_bytes() > 0 && host > program.host_limit_bytes()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the rank needs ", FormatBytes(host), " of host memory, resources.host_memory allows ",
        FormatBytes(program.host_limit_bytes()), "; raise it or offload less"));
  }
  const int64_t nvme = ReservedBytesNeeded(program, v1::NVME);
  if (program.nvme_limit_bytes() > 0 && nvme > program.nvme_limit_bytes()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the rank needs ", FormatBytes(nvme), " on NVMe, resources.nvme.bytes allows ",
                     FormatBytes(program.nvme_limit_bytes()), "; raise it or offload less"));
  }
  const GroupLimit& group = limits.group;
  if (device + host > group.free_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the rank needs ", RamText(device, host), ", ", group.file, " allows ",
                     FormatBytes(group.limit_bytes), ", of which ", FormatBytes(group.free_bytes),
                     " are free", TakenText(limits), "; ", UseLess(program), "raise that limit"));
  }
  if (device + host > limits.available_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the rank needs ", RamText(device, host), ", this machine has ",
                     FormatBytes(limits.available_bytes), " left (MemAvailable in /proc/meminfo)",
                     TakenText(limits), "; ", UseLess(program), "end what else uses it"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ProgramMemory> ProgramMemory::Reserve(const v1::Program& program,
                                                     MemoryOptions options) {
  RETURN_IF_ERROR(CheckHostLimits(program, options.limits));
  const std::unique_ptr<Backend> cpu = MakeCpuBackend();
  if (options.backend == nullptr) options.backend = cpu.get();
  ProgramMemory memory;
  for (const v1::Arena& arena : program.arenas()) {
    ASSIGN_OR_RETURN(Region* const region, memory.ReserveArena(arena, options));
    memory.regions_.push_back(region);
    memory.data_.push_back(region->device_data());
  }
  if (UsesCaching(program)) {
    ASSIGN_OR_RETURN(
        memory.dynamic_,
        DynamicMemory::Create(program, {.threads = options.threads,
                                        .source = options.backend->NewSegments(options.threads)}));
  }
  return memory;
}

absl::StatusOr<Region*> ProgramMemory::ReserveArena(const v1::Arena& arena,
                                                    const MemoryOptions& options) {
  const std::string name = absl::StrCat("terrace-arena-", arena.id());
  switch (arena.tier()) {
    case v1::HOST:
      return ReserveHost(name, arena.bytes(), options);
    case v1::NVME:
      return OpenNvme(arena.bytes(), options);
    default: {
      ArenaExtent extent = ExtentOf(arena);
      extent.shareable = options.shareable;
      ASSIGN_OR_RETURN(device_, options.backend->ReserveDevice(name, extent, options.threads));
      return device_.get();
    }
  }
}

absl::StatusOr<Region*> ProgramMemory::ReserveHost(const std::string& name, int64_t bytes,
                                                   const MemoryOptions& options) {
  ASSIGN_OR_RETURN(host_, HostRegion::Reserve(name, bytes, options.threads, options.limits));
  auto pin = options.backend->PinHost({host_->data(), static_cast<size_t>(host_->bytes())});
  if (pin.ok()) {
    pin_ = *std::move(pin);
  } else {
    log::Warn("copies between host memory and the device are slower than they could be: ",
              pin.status().message());
  }
  if (pin_ == nullptr && !host_->unlocked_because().empty())
    log::Warn("host memory is not locked, the system may swap it: ", host_->unlocked_because());
  return host_.get();
}

int64_t ProgramMemory::pinned_bytes() const {
  if (host_ == nullptr) return 0;
  return pin_ != nullptr ? host_->bytes() : host_->pinned_bytes();
}

absl::StatusOr<Region*> ProgramMemory::OpenNvme(int64_t bytes, const MemoryOptions& options) {
  const v1::NvmeSpec& spec = options.nvme;
  if (spec.paths().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("resources.nvme.paths: got none, the program keeps ", FormatBytes(bytes),
                     " on NVMe; name folders on this worker's drives"));
  }
  ASSIGN_OR_RETURN(nvme_,
                   NvmeFile::Create({.paths = {spec.paths().begin(), spec.paths().end()},
                                     .name = options.name,
                                     .bytes = bytes,
                                     .block_bytes = spec.block_bytes(),
                                     .queue_depth = static_cast<int>(spec.queue_depth()),
                                     .verify = spec.verify(),
                                     .engine = spec.engine().empty() ? "auto" : spec.engine(),
                                     .bytes_per_second = spec.bytes_per_second(),
                                     .wrap = options.wrap}));
  log::Info("NVMe: ", FormatBytes(bytes), " in ", nvme_->description());
  nvme_region_ = std::make_unique<DriveRegion>(nvme_.get());
  return nvme_region_.get();
}

int64_t ProgramMemory::reserved_bytes(v1::Tier tier) const {
  const Region* region = nullptr;
  if (tier == v1::DEVICE) region = device_.get();
  if (tier == v1::HOST) region = host_.get();
  if (tier == v1::NVME) region = nvme_.get();
  const int64_t segments =
      tier == v1::DEVICE && dynamic_ != nullptr ? dynamic_->reserved_bytes() : 0;
  return (region == nullptr ? 0 : region->bytes()) + segments;
}

}  // namespace terrace
