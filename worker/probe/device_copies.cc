// Copies between a device and pinned memory, and what instructions take beside their work.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status_macros.h"
#include "worker/device/device_queue.h"
#include "worker/probe/device.h"
#include "worker/probe/rates.h"

namespace terrace {
namespace {

constexpr int kRounds = 5, kCopies = 4;  // in a row
constexpr int kInstructions = 200;
constexpr int64_t kElements = 4;  // of an instruction that does next to nothing
constexpr int64_t kBlock = 256;

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

struct Copies {
  DeviceQueue* queue = nullptr;
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
};

// All of them at once, from the moment when the first queue is at its mark; until the last ends.
absl::StatusOr<double> Seconds(std::span<const Copies> all, int64_t bytes, const Clock& clock) {
  DeviceQueue* const first = all.front().queue;
  for (const Copies& one : all) RETURN_IF_ERROR(one.queue->Begin(clock));
  RETURN_IF_ERROR(first->Mark(1));
  for (const Copies& one : all) {
    if (one.queue != first) RETURN_IF_ERROR(one.queue->After(*first, 1));
  }
  for (int copy = 0; copy < kCopies; ++copy) {
    for (const Copies& one : all) RETURN_IF_ERROR(one.queue->Copy(one.to, one.from, bytes));
  }
  for (const Copies& one : all) RETURN_IF_ERROR(one.queue->Mark(2));
  ASSIGN_OR_RETURN(const int64_t start_ns, first->Finish(1));
  int64_t end_ns = start_ns;
  for (const Copies& one : all) {
    ASSIGN_OR_RETURN(const int64_t ns, one.queue->Finish(2));
    end_ns = std::max(end_ns, ns);
  }
  return static_cast<double>(end_ns - start_ns) * 1e-9;
}

// Of one instruction of a row, each with its mark, on one queue or on two that take turns.
absl::StatusOr<double> InstructionSeconds(const KernelCall& nothing, DeviceQueue* queue,
                                          DeviceQueue* other, std::span<std::byte> memory,
                                          const Clock& clock) {
  RETURN_IF_ERROR(queue->Begin(clock));
  if (other != nullptr) RETURN_IF_ERROR(other->Begin(clock));
  RETURN_IF_ERROR(queue->Compute(nothing));
  RETURN_IF_ERROR(queue->Mark(1));
  int position = 1;
  while (position <= kInstructions) {
    if (other != nullptr) {
      RETURN_IF_ERROR(other->After(*queue, position));
      RETURN_IF_ERROR(other->Copy(memory.data() + kBlock, memory.data(), kElements));
      RETURN_IF_ERROR(other->Mark(position));
      RETURN_IF_ERROR(queue->After(*other, position));
    }
    RETURN_IF_ERROR(queue->Compute(nothing));
    RETURN_IF_ERROR(queue->Mark(++position));
  }
  ASSIGN_OR_RETURN(const int64_t start_ns, queue->Finish(1));
  ASSIGN_OR_RETURN(const int64_t end_ns, queue->Finish(position));
  const int count = other == nullptr ? kInstructions : 2 * kInstructions;
  return static_cast<double>(end_ns - start_ns) * 1e-9 / count;
}

}  // namespace

absl::Status MeasureDeviceCopies(Backend* backend, int64_t copy_bytes,
                                 v1::HardwareProfile* profile) {
  ASSIGN_OR_RETURN(
      const std::unique_ptr<Region> device,
      backend->ReserveDevice("terrace-arena-probe-copies", {.bytes = 2 * copy_bytes}, 1));
  ASSIGN_OR_RETURN(const std::span<std::byte> host, backend->Staging(2 * copy_bytes));
  ASSIGN_OR_RETURN(const auto down, backend->NewQueue(v1::HOST_TO_DEVICE));
  ASSIGN_OR_RETURN(const auto up, backend->NewQueue(v1::DEVICE_TO_HOST));
  for (DeviceQueue* queue : {down.get(), up.get()}) RETURN_IF_ERROR(queue->Reserve(2));
  std::byte* const memory = device->device_data();
  const Copies copies[] = {{down.get(), memory, host.data()},
                           {up.get(), host.data() + copy_bytes, memory + copy_bytes}};
  const std::span<const Copies> both(copies), there = both.first(1), back = both.last(1);
  const SystemClock clock;
  std::vector<double> one_way, other_way, both_ways;
  const double bytes = static_cast<double>(kCopies * copy_bytes);
  for (int round = 0; round < kRounds; ++round) {
    ASSIGN_OR_RETURN(const double down_seconds, Seconds(there, copy_bytes, clock));
    ASSIGN_OR_RETURN(const double up_seconds, Seconds(back, copy_bytes, clock));
    ASSIGN_OR_RETURN(const double seconds, Seconds(both, copy_bytes, clock));
    if (std::min({down_seconds, up_seconds, seconds}) <= 0) continue;
    one_way.push_back(bytes / down_seconds);
    other_way.push_back(bytes / up_seconds);
    both_ways.push_back(2 * bytes / seconds);
  }
  if (one_way.empty()) return absl::InternalError("copies of the device take no time");
  profile->set_to_device_bytes_per_second(Median(one_way));
  profile->set_to_host_bytes_per_second(Median(other_way));
  profile->set_copy_duplex_ratio(
      std::clamp(Median(both_ways) / (Median(one_way) + Median(other_way)), 0.1, 1.0));
  return absl::OkStatus();
}

absl::Status MeasureDeviceInstructions(Backend* backend, v1::HardwareProfile* profile) {
  ASSIGN_OR_RETURN(
      const std::unique_ptr<Region> memory,
      backend->ReserveDevice("terrace-arena-probe-instructions", {.bytes = 2 * kBlock}, 1));
  RETURN_IF_ERROR(memory->Zero(0, 2 * kBlock));
  ASSIGN_OR_RETURN(const auto compute, backend->NewQueue(v1::COMPUTE));
  ASSIGN_OR_RETURN(const auto copy, backend->NewQueue(v1::HOST_TO_DEVICE));
  for (DeviceQueue* queue : {compute.get(), copy.get()})
    RETURN_IF_ERROR(queue->Reserve(kInstructions + 1));
  const ProbeCase add = StreamCase(kElements);
  KernelCall nothing;
  RETURN_IF_ERROR(compute->PrepareCompute(add.op, &nothing));
  nothing.attrs = add.attrs;
  for (size_t i = 0; i < add.operands.size(); ++i) {
    kernels::TensorView& view = nothing.operands.emplace_back();
    static_cast<kernels::TensorShape&>(view) = add.operands[i];
    view.data = memory->device_data() + static_cast<int64_t>(i) * kBlock;
  }
  const std::span<std::byte> bytes(memory->device_data(), 2 * kBlock);
  const SystemClock clock;
  // The first of each kind loads what it needs.
  for (int round = 0; round < 2; ++round) {
    ASSIGN_OR_RETURN(const double alone,
                     InstructionSeconds(nothing, compute.get(), nullptr, bytes, clock));
    ASSIGN_OR_RETURN(const double alternating,
                     InstructionSeconds(nothing, compute.get(), copy.get(), bytes, clock));
    profile->set_instruction_overhead_seconds(alone);
    profile->set_wake_seconds(std::max(0.0, alternating - alone));
  }
  return backend->CheckRun();
}

}  // namespace terrace
