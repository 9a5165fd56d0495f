// SPDX-License-Identifier: Apache-2.0
#include "worker/probe/runner.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "kernels/cpu/registry.h"

namespace terrace {
namespace {

using kernels::DType;

constexpr int64_t kArenaBytes = 192 << 20;  // several times a last-level cache
constexpr int64_t kAlignment = 256;
// Of each thread: several times its core's own cache, where operands would be found otherwise.
// Rates hold from there to half of the last-level cache (tests/bench/results/profile-*.md).
constexpr int64_t kThreadWindowBytesMin = 4 << 20;

int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

absl::StatusOr<KernelRunner> KernelRunner::Create(int threads) {
  ASSIGN_OR_RETURN(Arena arena, Arena::Reserve("terrace-arena-probe", kArenaBytes));
  arena.Touch(threads);
  return KernelRunner(std::move(arena), threads);
}

int64_t KernelRunner::SetBytes(const ProbeCase& one) const {
  int64_t bytes = Aligned(kernels::WorkspaceBytes(one.op, one.attrs, one.operands, threads_));
  for (const kernels::TensorShape& operand : one.operands) bytes += Aligned(operand.SpanBytes());
  return bytes;
}

bool KernelRunner::Fits(const ProbeCase& one) const { return SetBytes(one) <= kArenaBytes / 2; }

// Half of the cache: its other lines, the system's and those of other programs, have the rest.
int64_t KernelRunner::WindowInCache(const ProbeCase& one, int64_t cache_bytes) const {
  const int64_t set = std::max(SetBytes(one), kAlignment), half = cache_bytes / 2;
  const int64_t least = kThreadWindowBytesMin * threads_;
  const int64_t wanted = std::max<int64_t>(2, (least + set - 1) / set);
  return std::min(wanted, half / set) * set;  // whole sets, so that none overlaps itself
}

int64_t KernelRunner::RoundOf(const ProbeCase& one, int64_t window_bytes) const {
  return window_bytes / std::max(SetBytes(one), kAlignment);
}

void KernelRunner::SetWindow(int64_t window_bytes) {
  window_ = window_bytes;
  window_used_ = 0;
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
  const int64_t all = window_ > 0 ? window_ : kArenaBytes;
  int64_t& used = window_ > 0 ? window_used_ : used_;
  if (used + Aligned(bytes) > all) used = 0;
  std::byte* piece = arena_.data() + used;
  used += Aligned(bytes);
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
