// SPDX-License-Identifier: Apache-2.0
#include "proto/peak_flops.h"

#include <algorithm>

#include "absl/strings/match.h"

namespace terrace {
namespace {

// The precision that the device computes in where a layout asks for `precision`.
std::string_view ComputedIn(const v1::HardwareProfile& profile, std::string_view precision) {
  if (precision == "fp16") return profile.shared_cores() ? "fp32" : "bf16";
  if (precision == "fp8" && profile.fp8_flops_per_second() <= 0) return "bf16";
  if (precision == "tf32" && profile.tf32_flops_per_second() <= 0) return "fp32";
  return precision;
}

double Field(const v1::HardwareProfile& profile, std::string_view precision) {
  if (precision == "bf16") return profile.bf16_flops_per_second();
  if (precision == "fp8") return profile.fp8_flops_per_second();
  return precision == "tf32" ? profile.tf32_flops_per_second() : profile.f32_flops_per_second();
}

}  // namespace

double PeakFlops(const v1::HardwareProfile& profile, std::string_view precision) {
  for (const v1::KernelRate& rate : profile.kernels()) {
    if (rate.kernel() == kPeakKernel && rate.precision() == precision) {
      return rate.flops_per_second();
    }
  }
  const std::string_view computed = ComputedIn(profile, precision);
  double peak = Field(profile, computed);
  for (const v1::KernelRate& rate : profile.kernels()) {
    if (!absl::StartsWith(rate.kernel(), "matmul") || rate.precision() != computed) continue;
    peak = std::max(peak, rate.cached_flops_per_second());
  }
  return peak;
}

}  // namespace terrace
