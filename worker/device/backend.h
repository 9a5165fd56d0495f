// Where a program's device is: the host itself (memory is RAM, every stream is a thread), or a GPU
// (memory is its own; COMPUTE streams and copies between HOST and DEVICE are queues that it
// executes).
//
// The rest of the rank asks this interface and knows no other difference: instructions are prepared
// for a queue where their stream has one, and memory that has no address on the host is read and
// written through its Region.
//
// Thread rule: used on the thread that opened it, but for EnterThread and AskDriver.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/caching/segments.h"
#include "proto/v1/program.pb.h"
#include "worker/comm/communicator.h"
#include "worker/device/device_queue.h"
#include "worker/memory/region.h"
#include "worker/memory/second_addresses.h"

namespace terrace {

// What the device's driver says that this process holds of it.
struct DriverUse {
  int64_t bytes = 0;         // 0: nobody counts, the device is the host
  std::string source;        // "NVML"; where the figure is worked out, what from and why
  double energy_joules = 0;  // of the whole device, since its driver was loaded; 0: nobody counts
};

class Backend {
 public:
  // Host memory that the device knows, for as long as this lives.
  class Pin {
   public:
    virtual ~Pin() = default;
  };

  virtual ~Backend() = default;
  // For people: "CPU", "NVIDIA H100 80GB HBM3, sm_90, 132 SMs".
  virtual std::string description() const = 0;
  // Whether DEVICE memory is the host's: it counts against RAM, and host code may touch it.
  virtual bool device_is_host() const = 0;

  // The DEVICE arena, complete, with its second addresses behind its bytes. RESOURCE_EXHAUSTED with
  // the bytes and the way out; FAILED_PRECONDITION where the device cannot map pages so.
  virtual absl::StatusOr<std::unique_ptr<Region>> ReserveDevice(const std::string& name,
                                                                const ArenaExtent& extent,
                                                                int threads) = 0;
  // Segments of the caching allocator.
  virtual std::unique_ptr<SegmentSource> NewSegments(int threads) = 0;
  // So that copies of it need no help; null where there is nothing to do.
  virtual absl::StatusOr<std::unique_ptr<Pin>> PinHost(std::span<std::byte> memory) = 0;
  // Pinned host memory that lives as long as the backend.
  virtual absl::StatusOr<std::span<std::byte>> Staging(int64_t bytes) = 0;

  // Null: instructions of streams of that kind run on the stream's thread.
  virtual absl::StatusOr<std::unique_ptr<DeviceQueue>> NewQueue(v1::StreamKind kind) = 0;
  // Marks on the stream on which the collectives of groups run that can be captured; all of them
  // are on one stream. After the groups are connected. Null: none can be.
  virtual std::unique_ptr<DeviceQueue> NewCollectiveQueue() { return nullptr; }
  // Whether sequences that can be are captured as graphs (step_graph.h).
  virtual bool uses_graphs() const { return false; }
  // All ranks of the job, before their first group is connected.
  virtual absl::Status MeetRanks(uint32_t rank, uint32_t ranks, RendezvousStore* store,
                                 int64_t timeout_ms) = 0;
  // Whether the collectives of all groups must be called one after another, in list order.
  virtual bool one_collective_at_a_time() const = 0;
  // Groups whose collectives find their operands on the device.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Connect(const GroupOptions& options,
                                                                RendezvousStore* store) = 0;

  // Once on each thread that uses queues, groups or regions.
  virtual absl::Status EnterThread() = 0;
  // After a run, when all queues are empty: what kernels could not say when they were launched.
  virtual absl::Status CheckRun() = 0;
  // What the process holds of the device's memory beside the `reserved_bytes` of arenas and
  // segments. Ranks of the job that share the device wait for each other in `store`, before they
  // look and after it; each counts its part. They all call it equally often.
  virtual absl::StatusOr<int64_t> ExternalBytes(int64_t reserved_bytes, RendezvousStore* store) = 0;
  // What is held of the device now, by this process where the driver tells it apart, else by all:
  // the difference of two answers is what came between them. 0: nobody counts.
  virtual int64_t HeldBytes() { return 0; }
  // As the driver counts now. After ExternalBytes; on any thread. It may take a millisecond.
  virtual DriverUse AskDriver() { return {}; }
};

// The backend of a program whose Program.device is `device`: "" or "cpu", "cuda". INVALID_ARGUMENT
// for another; FAILED_PRECONDITION with what is missing and the way out where it cannot run here.
// `ordinal` counts the devices that this process may use; beyond the last it starts over, for ranks
// that share them.
absl::StatusOr<std::unique_ptr<Backend>> OpenBackend(std::string_view device, int ordinal);

struct DeviceSummary {
  std::string name;  // the driver's: "NVIDIA H100 80GB HBM3"
  int64_t memory_bytes = 0;
  std::string driver;  // "CUDA 13.0, 580.65.06"
  std::string uuid;    // 32 hexadecimal digits
};
// The GPUs that this process may use, without starting anything on them. FAILED_PRECONDITION where
// there is none, with what is missing.
absl::StatusOr<std::vector<DeviceSummary>> ListCudaDevices();

struct DeviceLoad {
  int processes = 0;  // of any container that have a context there, this one among them
  // Share of about the last second in which anything ran. None: the driver does not tell.
  std::optional<int> busy_percent;
};
// Of these GPUs. UNAVAILABLE where the driver does not tell, with why.
absl::StatusOr<std::vector<DeviceLoad>> LoadsOf(const std::vector<DeviceSummary>& devices);

// Its two halves. Builds without CUDA say how to get it, here and above.
std::unique_ptr<Backend> MakeCpuBackend();
absl::StatusOr<std::unique_ptr<Backend>> OpenCudaBackend(int ordinal);

}  // namespace terrace
