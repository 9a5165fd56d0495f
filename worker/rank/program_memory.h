// The memory of a program: one region an arena, by its tier. DEVICE is the backend's, HOST is RAM,
// reserved and touched; NVME is a preallocated file. In caching mode segments for step buffers come
// to it (dynamic_memory.h). All of it is there before the job is admitted, and no more is asked for
// afterwards.
//
// Before anything is reserved, what the arenas in RAM need is held against what the process may
// have: the budgets of the program, the control groups, the machine (worker/memory/host_limits.h).
//
// Owns the regions. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/program.pb.h"
#include "worker/device/backend.h"
#include "worker/memory/host_limits.h"
#include "worker/memory/host_region.h"
#include "worker/memory/nvme/nvme_file.h"
#include "worker/memory/region.h"
#include "worker/rank/drive_region.h"
#include "worker/vm/dynamic_memory.h"

namespace terrace {

struct MemoryOptions {
  int threads = 1;    // touch pages
  v1::NvmeSpec nvme;  // where the file of a program that uses NVMe goes
  std::string name;   // of that file: job and rank
  HostLimits limits = ReadHostLimits();
  BlockIoWrapper wrap;         // as in NvmeOptions
  Backend* backend = nullptr;  // whose memory DEVICE is, for longer than the regions; null: the CPU
  bool shareable = false;      // other ranks may want to map the DEVICE arena
};

// Of all arenas that lie in RAM: HOST, and DEVICE where that is the host's.
int64_t RamBytes(const v1::Program& program);

// RESOURCE_EXHAUSTED with the limit, the need and the way out when the program's arenas cannot fit.
absl::Status CheckHostLimits(const v1::Program& program, const HostLimits& limits);

class ProgramMemory {
 public:
  // As CheckHostLimits; RESOURCE_EXHAUSTED when the system has too little memory or NVMe space, and
  // what NvmeFile::Create says.
  static absl::StatusOr<ProgramMemory> Reserve(const v1::Program& program, MemoryOptions options);
  static absl::StatusOr<ProgramMemory> Reserve(const v1::Program& program, int threads) {
    return Reserve(program, MemoryOptions{.threads = threads});
  }

  // By Arena.id, as instructions name them. Of one that they cannot name the first is null.
  std::span<std::byte* const> arenas() const { return data_; }
  std::span<Region* const> regions() const { return regions_; }
  // Null when the program has no such tier.
  const HostRegion* host() const { return host_.get(); }
  NvmeFile* nvme() const { return nvme_.get(); }

  // Null in planned mode.
  DynamicMemory* dynamic() const { return dynamic_.get(); }

  // Of the arena as asked for by the program, and of segments; 0 for a tier that it does not use.
  int64_t reserved_bytes(v1::Tier tier) const;
  // Host memory that is locked, by the system or for a device.
  int64_t pinned_bytes() const;

 private:
  absl::StatusOr<Region*> ReserveArena(const v1::Arena& arena, const MemoryOptions& options);
  absl::StatusOr<Region*> ReserveHost(const std::string& name, int64_t bytes,
                                      const MemoryOptions& options);
  absl::StatusOr<Region*> OpenNvme(int64_t bytes, const MemoryOptions& options);

  std::unique_ptr<Region> device_;
  std::unique_ptr<HostRegion> host_;
  std::unique_ptr<Backend::Pin> pin_;  // of host_; goes first
  std::unique_ptr<NvmeFile> nvme_;
  std::unique_ptr<DriveRegion> nvme_region_;
  std::unique_ptr<DynamicMemory> dynamic_;
  std::vector<Region*> regions_;
  std::vector<std::byte*> data_;
};

}  // namespace terrace
