// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/probe_kernels.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "kernels/cpu/registry.h"
#include "kernels/rate_class.h"

namespace terrace {
namespace {

using kernels::DType;
using kernels::Op;

constexpr int64_t kStreamElements = 8 << 20;
constexpr int kTurns = 3;
constexpr int kCallsMin = 2, kCallsMax = 16;                      // of one turn
constexpr double kBriefSeconds = 3e-3, kThoroughSeconds = 15e-3;  // of one case, all its turns
constexpr double kSteadySeconds = 50e-3;  // of a figure that stands for many

kernels::TensorShape Vector(int64_t elements) {
  kernels::TensorShape shape = {.dtype = DType::kF32, .dims = 1};
  shape.size[0] = elements;
  shape.row_stride = 1;
  return shape;
}

// A step takes the sum of its calls as they come, so that the fastest ones would promise too much;
// the median is not moved by a neighbour who comes for less than half of the time.
double Median(std::vector<double> seconds) {
  if (seconds.empty()) return 0;
  std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
  return seconds[seconds.size() / 2];
}

}  // namespace

absl::StatusOr<KernelProbe> KernelProbe::Create(int threads, int ranks) {
  if (const kernels::Status prepared = kernels::cpu::Prepare(threads); !prepared.ok()) {
    return absl::InternalError(prepared.message);
  }
  ASSIGN_OR_RETURN(KernelRunner runner, KernelRunner::Create(threads));
  ASSIGN_OR_RETURN(auto companions, Companions::Create(ranks - 1, threads));
  return KernelProbe(std::move(runner), std::move(companions));
}

void KernelProbe::Call(const ProbeCase& one, double budget_seconds, std::vector<double>* seconds) {
  companions_->Do(&one);
  runner_.Call(one);
  double sum = 0;
  for (int calls = 0; calls < kCallsMin || (sum < budget_seconds && calls < kCallsMax); ++calls) {
    seconds->push_back(runner_.Call(one));
    sum += seconds->back();
  }
  companions_->Do(nullptr);
}

double KernelProbe::Seconds(const ProbeCase& one, double budget_seconds) {
  if (!runner_.Fits(one)) return 0;
  std::vector<double> seconds;
  for (int turn = 0; turn < kTurns; ++turn) Call(one, budget_seconds / kTurns, &seconds);
  return Median(std::move(seconds));
}

void KernelProbe::Measure(ProbeDepth depth, const ProbeProgress& progress,
                          v1::HardwareProfile* profile) {
  const std::vector<ProbeCase> cases = ProbeCases(depth);
  const double budget = depth == ProbeDepth::kBrief ? kBriefSeconds : kThoroughSeconds;
  std::vector<std::vector<double>> calls(cases.size());
  for (int turn = 0; turn < kTurns; ++turn) {
    for (size_t i = 0; i < cases.size(); ++i) {
      progress((turn + static_cast<double>(i) / static_cast<double>(cases.size())) / kTurns);
      if (runner_.Fits(cases[i])) Call(cases[i], budget / kTurns, &calls[i]);
    }
  }
  std::map<std::string, double> best;  // of matmul, by precision
  for (size_t i = 0; i < cases.size(); ++i) {
    const ProbeCase& one = cases[i];
    const double seconds = Median(std::move(calls[i]));
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
