// A GPU as the device of a rank: arenas and segments from cudaMalloc, queues on CUDA streams.
//
// Never executed on a GPU when this was written: docs/cuda.md says what has been.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/text/number_format.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/pages.h"
#include "kernels/cuda/second_pages.h"
#include "proto/caching/policy.h"
#include "worker/device/backend.h"
#include "worker/device/cuda_groups.h"
#include "worker/device/cuda_queue.h"
#include "worker/device/device_use.h"
#include "worker/device/graphable.h"

namespace terrace {
namespace {

namespace cuda = kernels::cuda;

absl::Status OutOfDeviceMemory(const cuda::Device& device, std::string_view what, int64_t bytes,
                               const kernels::Status& status) {
  int64_t free_bytes = 0, total_bytes = 0;
  cuda::FreeBytes(&free_bytes, &total_bytes);  // only for the sentence
  return absl::ResourceExhaustedError(
      absl::StrCat("the rank needs ", FormatBytes(bytes), " of device memory for ",
                   std::string(what), ", ", device.name(), " has ", FormatBytes(free_bytes), " of ",
                   FormatBytes(total_bytes), " free (", status.message,
                   "); end what else uses the device, or lower resources.device_memory so that "
                   "more is offloaded"));
}

// The device arena. Not addressable by the host: read and written by copies.
class DeviceArena final : public Region {
 public:
  DeviceArena(const cuda::Device& device, std::byte* data, int64_t bytes)
      : device_(device), data_(data), bytes_(bytes) {}
  // In pages, of which some have second addresses.
  DeviceArena(const cuda::Device& device, std::unique_ptr<cuda::SecondPages> pages,
              const ArenaExtent& extent)
      : device_(device),
        data_(pages->data()),
        bytes_(extent.bytes),
        second_bytes_(extent.second_bytes()),
        pages_(std::move(pages)) {}
  ~DeviceArena() override {
    if (pages_ == nullptr) cuda::FreeDevice(data_);
  }

  std::byte* data() const override { return nullptr; }
  std::byte* device_data() const override { return data_; }
  int64_t bytes() const override { return bytes_; }

  absl::Status Read(int64_t offset, std::span<std::byte> to) override {
    RETURN_IF_ERROR(Enter(offset, static_cast<int64_t>(to.size())));
    if (to.empty()) return absl::OkStatus();
    return OfCuda(cuda::CopyNow(to.data(), data_ + offset, static_cast<int64_t>(to.size())));
  }
  absl::Status Write(int64_t offset, std::span<const std::byte> from) override {
    RETURN_IF_ERROR(Enter(offset, static_cast<int64_t>(from.size())));
    if (from.empty()) return absl::OkStatus();
    return OfCuda(cuda::CopyNow(data_ + offset, from.data(), static_cast<int64_t>(from.size())));
  }
  absl::Status Zero(int64_t offset, int64_t bytes) override {
    RETURN_IF_ERROR(Enter(offset, bytes));
    return bytes == 0 ? absl::OkStatus() : OfCuda(cuda::ZeroNow(data_ + offset, bytes));
  }

 private:
  // Any thread may call: that of a checkpoint has no device of its own yet.
  absl::Status Enter(int64_t offset, int64_t count) const {
    const int64_t end = bytes_ + second_bytes_;
    if (offset < 0 || count < 0 || offset > end || count > end - offset) {
      return absl::OutOfRangeError(
          absl::StrCat(count, " bytes at ", offset, " of a device arena of ", end));
    }
    return OfCuda(device_.Use());
  }

  const cuda::Device& device_;
  std::byte* const data_;
  const int64_t bytes_;
  const int64_t second_bytes_ = 0;                  // of addresses behind them
  const std::unique_ptr<cuda::SecondPages> pages_;  // null: one allocation
};

class DeviceSegments final : public SegmentSource {
 public:
  explicit DeviceSegments(const cuda::Device& device) : device_(device) {}

  absl::StatusOr<std::byte*> Reserve(int64_t bytes) override {
    RETURN_IF_ERROR(OfCuda(device_.Use()));
    std::byte* data = nullptr;
    bool exhausted = false;
    const kernels::Status status = cuda::AllocateDevice(bytes, &data, &exhausted);
    if (exhausted) return OutOfDeviceMemory(device_, "a segment", bytes, status);
    RETURN_IF_ERROR(OfCuda(status));
    return data;
  }
  void Release(std::byte* data) override {
    if (ranges_.erase(data) == 0) cuda::FreeDevice(data);
  }

  absl::StatusOr<std::byte*> ReserveRange(int64_t bytes) override {
    RETURN_IF_ERROR(OfCuda(device_.Use()));
    std::unique_ptr<cuda::PagedRange> range;
    const kernels::Status status = cuda::PagedRange::Reserve(bytes, &range);
    if (!status.ok()) {
      return absl::FailedPreconditionError(absl::StrCat("layout.allocator: got expandable, but on ",
                                                        device_.name(), " ", status.message,
                                                        "; use caching or planned"));
    }
    std::byte* const data = range->data();
    ranges_.emplace(data, std::move(range));
    return data;
  }
  absl::Status Map(std::byte* data, int64_t bytes) override {
    cuda::PagedRange& range = RangeOf(data);
    bool exhausted = false;
    const kernels::Status status = range.Map(data - range.data(), bytes, &exhausted);
    return exhausted ? OutOfDeviceMemory(device_, "pages of a segment", bytes, status)
                     : OfCuda(status);
  }
  void Unmap(std::byte* data, int64_t bytes) override {
    cuda::PagedRange& range = RangeOf(data);
    if (const kernels::Status status = range.Unmap(data - range.data(), bytes); !status.ok())
      log::Warn("pages of a segment that nobody needs stay on the device: ", status.message);
  }

 private:
  cuda::PagedRange& RangeOf(std::byte* data) {
    return *std::prev(ranges_.upper_bound(data))->second;
  }

  const cuda::Device& device_;
  std::map<std::byte*, std::unique_ptr<cuda::PagedRange>> ranges_;  // by first byte
};
static_assert(CachingPolicy::kPageBytes == cuda::kPageBytes);

class HostPin final : public Backend::Pin {
 public:
  explicit HostPin(std::byte* data) : data_(data) {}
  ~HostPin() override { cuda::Unpin(data_); }

 private:
  std::byte* const data_;
};

// TERRACE_CUDA_GRAPHS=0: to name the instruction at which the device fails, or to compare.
bool WantsGraphs() {
  const char* const set = std::getenv("TERRACE_CUDA_GRAPHS");
  return set == nullptr || std::string_view(set) != "0";
}

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(std::unique_ptr<cuda::Device> device)
      : device_(std::move(device)), groups_(*device_), use_(*device_, &groups_) {}
  ~CudaBackend() override {
    for (std::byte* data : staging_) cuda::FreePinned(data);
  }

  std::string description() const override { return device_->name(); }
  bool device_is_host() const override { return false; }

  absl::StatusOr<std::unique_ptr<Region>> ReserveDevice(const std::string&,
                                                        const ArenaExtent& extent, int) override {
    if (!extent.runs.empty()) return ReservePages(extent);
    std::string refusal;
    if (extent.shareable) {
      std::unique_ptr<cuda::SecondPages> pages;
      bool exhausted = false;
      const kernels::Status status =
          cuda::SecondPages::ReserveShared(extent.bytes, &pages, &exhausted);
      if (exhausted) return OutOfDeviceMemory(*device_, "its arena", extent.bytes, status);
      if (status.ok()) {
        groups_.SetArena({.data = pages->data(), .bytes = extent.bytes});
        return std::make_unique<DeviceArena>(*device_, std::move(pages), extent);
      }
      refusal = absl::StrCat(
          "NCCL leaves memory of cudaMalloc alone, and another kind was not to be "
          "had: ",
          status.message);
    }
    return ReservePlain(extent.bytes, refusal);
  }

  absl::StatusOr<std::unique_ptr<Region>> ReservePlain(int64_t bytes, const std::string& refusal) {
    std::byte* data = nullptr;
    bool exhausted = false;
    const kernels::Status status =
        cuda::AllocateDevice(std::max<int64_t>(bytes, 1), &data, &exhausted);
    if (exhausted) return OutOfDeviceMemory(*device_, "its arena", bytes, status);
    RETURN_IF_ERROR(OfCuda(status));
    groups_.SetArena({.data = data, .bytes = bytes, .refusal = refusal});
    return std::make_unique<DeviceArena>(*device_, data, bytes);
  }

  // Of several allocations NCCL maps the first for its peers and takes it for all (up to 2.30 at
  // least), so that groups do not use it in place.
  absl::StatusOr<std::unique_ptr<Region>> ReservePages(const ArenaExtent& extent) {
    if (extent.page_bytes % cuda::kPageBytes != 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("the program has pages of ", extent.page_bytes, " bytes, ", device_->name(),
                       " maps multiples of ", cuda::kPageBytes, "; plan it for this device"));
    }
    std::vector<cuda::SecondPages::Run> runs;
    for (const PageRun& run : extent.runs)
      runs.push_back({run.page * extent.page_bytes, run.pages * extent.page_bytes});
    std::unique_ptr<cuda::SecondPages> pages;
    bool exhausted = false;
    const kernels::Status status =
        cuda::SecondPages::Reserve(extent.bytes, runs, &pages, &exhausted);
    if (exhausted) return OutOfDeviceMemory(*device_, "its arena", extent.bytes, status);
    if (!status.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("the arena has pages at second addresses, but on ", device_->name(), " ",
                       status.message, "; set layout.packing: contiguous"));
    }
    groups_.SetArena({.refusal = "its pages at second addresses are several allocations of the "
                                 "driver, of which NCCL maps one"});
    return std::make_unique<DeviceArena>(*device_, std::move(pages), extent);
  }

  std::unique_ptr<SegmentSource> NewSegments(int) override {
    return std::make_unique<DeviceSegments>(*device_);
  }

  absl::StatusOr<std::unique_ptr<Pin>> PinHost(std::span<std::byte> memory) override {
    if (memory.empty()) return std::unique_ptr<Pin>();
    RETURN_IF_ERROR(OfCuda(cuda::Pin(memory.data(), static_cast<int64_t>(memory.size()))));
    return std::make_unique<HostPin>(memory.data());
  }

  absl::StatusOr<std::span<std::byte>> Staging(int64_t bytes) override {
    std::byte* data = nullptr;
    RETURN_IF_ERROR(OfCuda(cuda::AllocatePinned(std::max<int64_t>(bytes, 1), &data)));
    staging_.push_back(data);
    return std::span(data, static_cast<size_t>(bytes));
  }

  absl::StatusOr<std::unique_ptr<DeviceQueue>> NewQueue(v1::StreamKind kind) override {
    if (!RunsOnDeviceQueue(kind)) return std::unique_ptr<DeviceQueue>();
    std::unique_ptr<cuda::Queue> queue;
    RETURN_IF_ERROR(OfCuda(cuda::Queue::Create(&queue)));
    return std::make_unique<CudaQueue>(*device_, std::move(queue));
  }

  std::unique_ptr<DeviceQueue> NewCollectiveQueue() override {
    CUstream_st* const stream = groups_.captured_stream();
    if (stream == nullptr) return nullptr;
    return std::make_unique<CudaQueue>(*device_, cuda::Queue::On(stream));
  }
  bool uses_graphs() const override { return uses_graphs_; }

  absl::Status MeetRanks(uint32_t rank, uint32_t ranks, RendezvousStore* store,
                         int64_t timeout_ms) override {
    return groups_.Meet(rank, ranks, uses_graphs_, store, timeout_ms);
  }
  // NCCL hangs where the members of two groups launch their collectives in different orders.
  bool one_collective_at_a_time() const override { return true; }
  absl::StatusOr<std::unique_ptr<Communicator>> Connect(const GroupOptions& options,
                                                        RendezvousStore* store) override {
    return groups_.Connect(options, store);
  }

  absl::Status EnterThread() override { return OfCuda(device_->Use()); }
  absl::Status CheckRun() override { return OfCuda(device_->Finish()); }

  absl::StatusOr<int64_t> ExternalBytes(int64_t reserved_bytes, RendezvousStore* store) override {
    return use_.Measure(reserved_bytes, store);
  }
  int64_t HeldBytes() override { return use_.Held(); }
  DriverUse AskDriver() override { return use_.Now(); }

 private:
  const std::unique_ptr<cuda::Device> device_;
  const bool uses_graphs_ = WantsGraphs();
  CudaGroups groups_;
  DeviceUse use_;
  std::vector<std::byte*> staging_;
};

// With the version of the kernel's module, where it can be seen: rates change with it too.
std::string DriverText() {
  std::string text = absl::StrCat("CUDA ", cuda::DriverVersion());
  std::ifstream file("/proc/driver/nvidia/version");
  std::string word, line;
  if (!std::getline(file, line)) return text;
  std::istringstream words(line);
  while (words >> word) {
    if (word.find_first_not_of("0123456789.") == std::string::npos)
      return absl::StrCat(text, ", ", word);
  }
  return text;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> OpenCudaBackend(int ordinal) {
  std::vector<cuda::DeviceInfo> devices;
  kernels::Status opened = cuda::ListDevices(&devices);
  std::unique_ptr<cuda::Device> device;
  if (opened.ok()) opened = cuda::Device::Open(ordinal % static_cast<int>(devices.size()), &device);
  if (!opened.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "resources.device: got cuda, but ", opened.message,
        "; start the worker where nvidia-smi lists a device, or set resources.device: cpu"));
  }
  return std::make_unique<CudaBackend>(std::move(device));
}

absl::StatusOr<std::vector<DeviceSummary>> ListCudaDevices() {
  std::vector<cuda::DeviceInfo> found;
  if (const kernels::Status listed = cuda::ListDevices(&found); !listed.ok())
    return absl::FailedPreconditionError(listed.message);
  std::vector<DeviceSummary> devices;
  const std::string driver = DriverText();
  for (const cuda::DeviceInfo& device : found) {
    devices.push_back({.name = device.name,
                       .memory_bytes = device.memory_bytes,
                       .driver = driver,
                       .uuid = device.uuid});
  }
  return devices;
}

}  // namespace terrace
