// SPDX-License-Identifier: Apache-2.0
#include "worker/probe/device_runner.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "kernels/cuda/workspace.h"

namespace terrace {
namespace {

using kernels::DType;

constexpr int64_t kAlignment = 256;
// The arena begins with numbers to copy from, zeros for ids and factors, and scratch for what is
// tiny, which is zero before each measurement: sums must not grow without end.
constexpr int64_t kPatternBytes = 4 << 20;
constexpr int64_t kZeroBytes = 1 << 20;
constexpr int64_t kTinyBytes = 4 << 10;
constexpr int64_t kTinyOperand = 256;
// More than the last-level cache of any GPU: an operand comes back after so many bytes of others.
constexpr int64_t kCacheBytes = 256 << 20;
constexpr int kSetsMax = 64;

int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

bool IsZero(const kernels::TensorShape& shape) { return shape.dtype == DType::kI32; }
bool IsTiny(const kernels::TensorShape& shape) { return shape.SpanBytes() <= kTinyOperand; }

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceRunner>> DeviceRunner::Create(Backend* backend,
                                                                   int64_t arena_bytes) {
  ASSIGN_OR_RETURN(std::unique_ptr<Region> arena,
                   backend->ReserveDevice("terrace-arena-probe", {.bytes = arena_bytes}, 1));
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceQueue> queue, backend->NewQueue(v1::COMPUTE));
  RETURN_IF_ERROR(queue->Reserve(2));
  std::unique_ptr<DeviceRunner> runner(new DeviceRunner(std::move(arena), std::move(queue)));
  RETURN_IF_ERROR(runner->WritePattern());
  RETURN_IF_ERROR(runner->arena_->Zero(kPatternBytes, kZeroBytes + kTinyBytes));
  return runner;
}

int64_t DeviceRunner::first_set() const { return kPatternBytes + kZeroBytes + kTinyBytes; }

// Pairs of bf16 between 1/4 and 1 in size, of either sign, which are such numbers in f32 too, and
// in f16 numbers between 1 and 2.
absl::Status DeviceRunner::WritePattern() {
  std::vector<uint16_t> numbers(kPatternBytes / 2);
  uint64_t state = 0x9e3779b97f4a7c15;
  for (uint16_t& number : numbers) {
    state = state * 6364136223846793005 + 1442695040888963407;
    const auto random = static_cast<uint32_t>(state >> 40);
    const uint32_t sign = random & 1, exponent = 125 + (random >> 1 & 1);
    number = static_cast<uint16_t>(sign << 15 | exponent << 7 | (random >> 2 & 0x7f));
  }
  return arena_->Write(0, std::as_bytes(std::span(numbers)));
}

int64_t DeviceRunner::SetBytes(const ProbeCase& one) const {
  int64_t bytes = Aligned(kernels::cuda::WorkspaceBytes(one.op, one.attrs, one.operands));
  for (const kernels::TensorShape& operand : one.operands) {
    if (!operand.absent() && !IsZero(operand) && !IsTiny(operand))
      bytes += Aligned(operand.SpanBytes());
  }
  return std::max(bytes, kAlignment);
}

bool DeviceRunner::Fits(const ProbeCase& one) const {
  int64_t zeros = 0, tiny = 0;
  for (const kernels::TensorShape& operand : one.operands) {
    if (operand.absent()) continue;
    if (IsZero(operand)) {
      zeros = std::max(zeros, operand.SpanBytes());
    } else if (IsTiny(operand)) {
      tiny += kTinyOperand;
    }
  }
  return 2 * SetBytes(one) <= arena_->bytes() - first_set() && zeros <= kZeroBytes &&
         tiny <= kTinyBytes;
}

absl::StatusOr<std::vector<KernelCall>> DeviceRunner::Place(const ProbeCase& one) {
  const int64_t bytes = SetBytes(one);
  const int64_t room = (arena_->bytes() - first_set()) / bytes;
  const int64_t wanted = std::clamp<int64_t>(kCacheBytes / bytes + 1, 2, kSetsMax);
  std::vector<KernelCall> sets(std::min(room, wanted));
  int64_t next = first_set();
  for (KernelCall& set : sets) {
    set.attrs = one.attrs;  // which may be of an arithmetic that the device lacks
    RETURN_IF_ERROR(queue_->PrepareCompute(one.op, &set));
    set.context.workspace_bytes = kernels::cuda::WorkspaceBytes(one.op, one.attrs, one.operands);
    set.context.workspace = at(next);
    next += Aligned(set.context.workspace_bytes);
    int64_t tiny = kPatternBytes + kZeroBytes;
    for (const kernels::TensorShape& shape : one.operands) {
      kernels::TensorView& view = set.operands.emplace_back();
      static_cast<kernels::TensorShape&>(view) = shape;
      if (shape.absent()) continue;
      if (IsZero(shape)) {
        view.data = at(kPatternBytes);
      } else if (IsTiny(shape)) {
        view.data = at(std::exchange(tiny, tiny + kTinyOperand));
      } else {
        view.data = at(std::exchange(next, next + Aligned(shape.SpanBytes())));
      }
    }
  }
  return sets;
}

absl::Status DeviceRunner::Fill(const std::vector<KernelCall>& sets) {
  RETURN_IF_ERROR(queue_->Zero(at(kPatternBytes), kZeroBytes + kTinyBytes));
  for (const KernelCall& set : sets) {
    for (const kernels::TensorView& operand : set.operands) {
      if (operand.absent() || IsZero(operand) || IsTiny(operand)) continue;
      auto* const data = static_cast<std::byte*>(operand.data);
      const int64_t bytes = operand.SpanBytes();
      for (int64_t done = 0; done < bytes; done += kPatternBytes) {
        RETURN_IF_ERROR(queue_->Copy(data + done, at(0), std::min(kPatternBytes, bytes - done)));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<double> DeviceRunner::Seconds(const ProbeCase& one, int calls) {
  ASSIGN_OR_RETURN(const std::vector<KernelCall> sets, Place(one));
  RETURN_IF_ERROR(queue_->Begin(clock_));
  RETURN_IF_ERROR(Fill(sets));
  RETURN_IF_ERROR(queue_->Compute(sets[0]));
  RETURN_IF_ERROR(queue_->Mark(1));
  for (int call = 1; call <= calls; ++call)
    RETURN_IF_ERROR(queue_->Compute(sets[call % sets.size()]));
  RETURN_IF_ERROR(queue_->Mark(2));
  ASSIGN_OR_RETURN(const int64_t start_ns, queue_->Finish(1));
  ASSIGN_OR_RETURN(const int64_t end_ns, queue_->Finish(2));
  return static_cast<double>(end_ns - start_ns) * 1e-9 / calls;
}

}  // namespace terrace
