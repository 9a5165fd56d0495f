// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/probe_runner.h"

#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "kernels/cpu/registry.h"

namespace terrace {
namespace {

using kernels::DType;

constexpr int64_t kArenaBytes = 192 << 20;  // several times a last-level cache
constexpr int64_t kAlignment = 256;

int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

absl::StatusOr<KernelRunner> KernelRunner::Create(int threads) {
  ASSIGN_OR_RETURN(Arena arena, Arena::Reserve("terrace-arena-probe", kArenaBytes));
  arena.Touch(threads);
  return KernelRunner(std::move(arena), threads);
}

bool KernelRunner::Fits(const ProbeCase& one) const {
  int64_t bytes = Aligned(kernels::WorkspaceBytes(one.op, one.attrs, one.operands, threads_));
  for (const kernels::TensorShape& operand : one.operands) bytes += Aligned(operand.SpanBytes());
  return bytes <= kArenaBytes / 2;
}

double KernelRunner::Call(const ProbeCase& one) {
  const std::vector<kernels::TensorView> operands = Operands(one);
  kernels::Context context = {.threads = threads_};
  context.workspace_bytes = kernels::WorkspaceBytes(one.op, one.attrs, one.operands, threads_);
  context.workspace = Take(context.workspace_bytes);
  const int64_t start_ns = clock_.MonotonicNanos();
  const kernels::Status status = kernels::cpu::Find(one.op)(one.attrs, operands, context);
  const double seconds = static_cast<double>(clock_.MonotonicNanos() - start_ns) * 1e-9;
  return status.ok() ? seconds : 0;
}

std::byte* KernelRunner::Take(int64_t bytes) {
  if (used_ + Aligned(bytes) > kArenaBytes) used_ = 0;
  std::byte* piece = arena_.data() + used_;
  used_ += Aligned(bytes);
  return piece;
}

std::vector<kernels::TensorView> KernelRunner::Operands(const ProbeCase& one) {
  std::vector<kernels::TensorView> views(one.operands.size());
  for (size_t i = 0; i < views.size(); ++i) {
    static_cast<kernels::TensorShape&>(views[i]) = one.operands[i];
    if (one.operands[i].absent()) continue;
    const int64_t bytes = one.operands[i].SpanBytes();
    views[i].data = Take(bytes);
    // Ids and factors must be valid; sums of earlier calls must not grow without end.
    if (views[i].dtype == DType::kI32 || bytes <= kAlignment) {
      std::memset(views[i].data, 0, bytes);
    }
  }
  return views;
}

}  // namespace terrace
