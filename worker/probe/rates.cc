// SPDX-License-Identifier: Apache-2.0
#include "worker/probe/rates.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "kernels/rate_class.h"

namespace terrace {

double MeanWithoutExtremes(std::vector<double> turns) {
  if (turns.empty()) return 0;
  std::sort(turns.begin(), turns.end());
  const auto count = static_cast<std::ptrdiff_t>(turns.size());
  const std::ptrdiff_t left_out = count < 3 ? 0 : std::max<std::ptrdiff_t>(1, count / 4);
  return std::accumulate(turns.begin() + left_out, turns.end() - left_out, 0.0) /
         static_cast<double>(count - 2 * left_out);
}

double SpreadOf(const std::vector<std::vector<double>>& turns_of_cases) {
  std::vector<double> spreads;
  for (const std::vector<double>& turns : turns_of_cases) {
    if (turns.size() < 2) continue;
    const auto [fastest, slowest] = std::minmax_element(turns.begin(), turns.end());
    if (*fastest > 0) spreads.push_back(*slowest / *fastest);
  }
  if (spreads.empty()) return 1;
  const auto middle = spreads.begin() + static_cast<std::ptrdiff_t>(spreads.size() / 2);
  std::nth_element(spreads.begin(), middle, spreads.end());
  return *middle;
}

void AddRate(const ProbeCase& one, double seconds, v1::HardwareProfile* profile) {
  if (seconds <= 0) return;
  const kernels::RateClass of = kernels::RateClassOf(one.op, one.attrs, one.operands);
  const double flops = static_cast<double>(kernels::Flops(one.op, one.attrs, one.operands));
  v1::KernelRate* rate = profile->add_kernels();
  rate->set_kernel(of.kernel);
  rate->set_precision(of.precision);
  rate->set_rows(of.rows);
  rate->set_columns(of.columns);
  rate->set_inner(of.inner);
  rate->set_flops_per_second(flops / seconds);
  if (one.op != kernels::Op::kMatmul) return;
  if (of.precision == "fp32") {
    profile->set_f32_flops_per_second(
        std::max(profile->f32_flops_per_second(), rate->flops_per_second()));
  } else if (of.precision == "tf32") {
    profile->set_tf32_flops_per_second(
        std::max(profile->tf32_flops_per_second(), rate->flops_per_second()));
  } else if (of.precision == "bf16") {
    profile->set_bf16_flops_per_second(
        std::max(profile->bf16_flops_per_second(), rate->flops_per_second()));
  } else if (of.precision == "fp8") {
    profile->set_fp8_flops_per_second(
        std::max(profile->fp8_flops_per_second(), rate->flops_per_second()));
  }
}

void AddCachedRate(const ProbeCase& one, double seconds, v1::HardwareProfile* profile) {
  if (seconds <= 0 || profile->kernels().empty()) return;
  const double flops = static_cast<double>(kernels::Flops(one.op, one.attrs, one.operands));
  profile->mutable_kernels(profile->kernels_size() - 1)
      ->set_cached_flops_per_second(flops / seconds);
}

ProbeCase StreamCase(int64_t elements) {
  kernels::TensorShape x = {.dtype = kernels::DType::kF32, .dims = 1};
  x.size[0] = elements;
  x.row_stride = 1;
  return {kernels::Op::kAdd, kernels::NoAttrs{}, {x, x}};
}

void SetMemoryRate(const ProbeCase& stream, double seconds, v1::HardwareProfile* profile) {
  if (seconds <= 0) return;
  profile->set_memory_bytes_per_second(
      static_cast<double>(kernels::BytesMoved(stream.op, stream.attrs, stream.operands)) / seconds);
}

}  // namespace terrace
