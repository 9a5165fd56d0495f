// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/probe_kernels.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
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
constexpr int kCallsMax = 16;            // of one turn
constexpr double kTurnSeconds = 1.5e-3;  // of one turn of one case, if calls are that short
constexpr int kBriefTurns = 3, kThoroughTurns = 8;
constexpr int kSteadyTurns = 30;  // of a figure that stands for many

kernels::TensorShape Vector(int64_t elements) {
  kernels::TensorShape shape = {.dtype = DType::kF32, .dims = 1};
  shape.size[0] = elements;
  shape.row_stride = 1;
  return shape;
}

double Median(std::vector<double> seconds) {
  std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
  return seconds[seconds.size() / 2];
}

// A step takes the sum of its calls as they come, in the machine's fast moments and in its slow
// ones: of a turn the call that is neither, and of the turns, which lie apart, their mean.
double Mean(const std::vector<double>& turns) {
  if (turns.empty()) return 0;
  return std::accumulate(turns.begin(), turns.end(), 0.0) / static_cast<double>(turns.size());
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

double KernelProbe::Turn(const ProbeCase& one) {
  companions_->Do(&one);
  std::vector<double> seconds = {runner_.Call(one)};
  if (seconds[0] < kTurnSeconds) {  // a long call needs no warming up
    seconds.clear();
    double sum = 0;
    while (sum < kTurnSeconds && seconds.size() < kCallsMax) {
      seconds.push_back(runner_.Call(one));
      sum += seconds.back();
    }
  }
  companions_->Do(nullptr);
  return Median(std::move(seconds));
}

double KernelProbe::SteadySeconds(const ProbeCase& one) {
  if (!runner_.Fits(one)) return 0;
  std::vector<double> turns;
  for (int turn = 0; turn < kSteadyTurns; ++turn) turns.push_back(Turn(one));
  return Mean(turns);
}

void KernelProbe::Measure(ProbeDepth depth, const ProbeProgress& progress,
                          v1::HardwareProfile* profile) {
  const std::vector<ProbeCase> cases = ProbeCases(depth);
  const int count = depth == ProbeDepth::kBrief ? kBriefTurns : kThoroughTurns;
  std::vector<std::vector<double>> turns(cases.size());
  for (int turn = 0; turn < count; ++turn) {
    for (size_t i = 0; i < cases.size(); ++i) {
      progress((turn + static_cast<double>(i) / static_cast<double>(cases.size())) / count);
      if (runner_.Fits(cases[i])) turns[i].push_back(Turn(cases[i]));
    }
  }
  std::map<std::string, double> best;  // of matmul, by precision
  for (size_t i = 0; i < cases.size(); ++i) {
    const ProbeCase& one = cases[i];
    const double seconds = Mean(turns[i]);
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
      SteadySeconds(stream));
}

}  // namespace terrace
