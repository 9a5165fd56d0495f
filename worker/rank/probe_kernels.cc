// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/probe_kernels.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "kernels/cpu/registry.h"
#include "kernels/rate_class.h"

namespace terrace {
namespace {

using kernels::DType;
using kernels::Op;

constexpr int64_t kArenaBytes = 192 << 20;  // several times a last-level cache
constexpr int64_t kAlignment = 256;
constexpr int64_t kStreamElements = 8 << 20;
constexpr int kCallsMin = 5, kCallsMax = 64;
constexpr double kBriefSeconds = 3e-3, kThoroughSeconds = 15e-3;  // of one case
constexpr double kSteadySeconds = 50e-3;  // of a figure that stands for many

int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

kernels::TensorShape Vector(int64_t elements) {
  kernels::TensorShape shape = {.dtype = DType::kF32, .dims = 1};
  shape.size[0] = elements;
  shape.row_stride = 1;
  return shape;
}

}  // namespace

absl::StatusOr<KernelProbe> KernelProbe::Create(int threads) {
  if (const kernels::Status prepared = kernels::cpu::Prepare(threads); !prepared.ok()) {
    return absl::InternalError(prepared.message);
  }
  ASSIGN_OR_RETURN(Arena arena, Arena::Reserve("terrace-arena-probe", kArenaBytes));
  arena.Touch(threads);
  return KernelProbe(std::move(arena), threads);
}

std::byte* KernelProbe::Take(int64_t bytes) {
  if (used_ + Aligned(bytes) > kArenaBytes) used_ = 0;
  std::byte* piece = arena_.data() + used_;
  used_ += Aligned(bytes);
  return piece;
}

std::vector<kernels::TensorView> KernelProbe::Operands(const ProbeCase& one) {
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

double KernelProbe::Call(const ProbeCase& one) {
  const std::vector<kernels::TensorView> operands = Operands(one);
  kernels::Context context = {.threads = threads_};
  context.workspace_bytes = kernels::WorkspaceBytes(one.op, one.attrs, one.operands, threads_);
  context.workspace = Take(context.workspace_bytes);
  const int64_t start_ns = clock_.MonotonicNanos();
  const kernels::Status status = kernels::cpu::Find(one.op)(one.attrs, operands, context);
  const double seconds = static_cast<double>(clock_.MonotonicNanos() - start_ns) * 1e-9;
  return status.ok() ? seconds : 0;
}

double KernelProbe::Seconds(const ProbeCase& one, double budget_seconds) {
  int64_t bytes = Aligned(kernels::WorkspaceBytes(one.op, one.attrs, one.operands, threads_));
  for (const kernels::TensorShape& operand : one.operands) bytes += Aligned(operand.SpanBytes());
  // Two sets of operands fit, so that none is found where the last call left it.
  if (bytes > kArenaBytes / 2) return 0;
  Call(one);
  std::vector<double> seconds;
  double sum = 0;
  while (static_cast<int>(seconds.size()) < kCallsMin ||
         (sum < budget_seconds && static_cast<int>(seconds.size()) < kCallsMax)) {
    seconds.push_back(Call(one));
    sum += seconds.back();
  }
  // Interruptions by others only ever lengthen a call: the faster quarter is this machine's.
  std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 4, seconds.end());
  return seconds[seconds.size() / 4];
}

void KernelProbe::Measure(ProbeDepth depth, const ProbeProgress& progress,
                          v1::HardwareProfile* profile) {
  const std::vector<ProbeCase> cases = ProbeCases(depth);
  const double budget = depth == ProbeDepth::kBrief ? kBriefSeconds : kThoroughSeconds;
  std::map<std::string, double> best;  // of matmul, by precision
  for (size_t i = 0; i < cases.size(); ++i) {
    progress(static_cast<double>(i) / static_cast<double>(cases.size()));
    const ProbeCase& one = cases[i];
    const double seconds = Seconds(one, budget);
    if (seconds <= 0) continue;
    const kernels::RateClass of = kernels::RateClassOf(one.op, one.attrs, one.operands);
    v1::KernelRate* rate = profile->add_kernels();
    rate->set_kernel(of.kernel);
    rate->set_precision(of.precision);
    rate->set_rows(of.rows);
    rate->set_columns(of.columns);
    rate->set_inner(of.inner);
    rate->set_flops_per_second(
        static_cast<double>(kernels::Flops(one.op, one.attrs, one.operands)) / seconds);
    if (one.op == Op::kMatmul) {
      best[of.precision] = std::max(best[of.precision], rate->flops_per_second());
    }
  }
  profile->set_f32_flops_per_second(best["fp32"]);
  profile->set_bf16_flops_per_second(best["bf16"]);
  const kernels::TensorShape x = Vector(kStreamElements);
  const ProbeCase stream = {Op::kAdd, kernels::NoAttrs{}, {x, x}};
  profile->set_memory_bytes_per_second(
      static_cast<double>(kernels::BytesMoved(stream.op, stream.attrs, stream.operands)) /
      Seconds(stream, kSteadySeconds));
}

}  // namespace terrace
