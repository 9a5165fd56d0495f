// SPDX-License-Identifier: Apache-2.0
#include "proto/peak_flops.h"

namespace terrace {

double PeakFlops(const v1::HardwareProfile& profile, std::string_view precision) {
  for (const v1::KernelRate& rate : profile.kernels()) {
    if (rate.kernel() == kPeakKernel && rate.precision() == precision) {
      return rate.flops_per_second();
    }
  }
  const bool half = precision == "fp16" && !profile.shared_cores();
  if (half || precision == "bf16") return profile.bf16_flops_per_second();
  if (precision == "fp8") {
    return profile.fp8_flops_per_second() > 0 ? profile.fp8_flops_per_second()
                                              : profile.bf16_flops_per_second();
  }
  const bool tf32 = precision == "tf32" && profile.tf32_flops_per_second() > 0;
  return tf32 ? profile.tf32_flops_per_second() : profile.f32_flops_per_second();
}

}  // namespace terrace
