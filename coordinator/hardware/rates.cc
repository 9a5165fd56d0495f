// SPDX-License-Identifier: Apache-2.0
#include "coordinator/hardware/rates.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "coordinator/hardware/profiles.h"

namespace terrace {
namespace {

bool IsProduct(const v1::KernelRate& kernel) {
  return absl::StartsWith(kernel.kernel(), "matmul") ||
         absl::StartsWith(kernel.kernel(), "lm_head");
}

bool IsAttention(const v1::KernelRate& kernel) {
  return absl::StartsWith(kernel.kernel(), "attention");
}

template <typename Is>
void ScaleKernels(const Is& is, double factor, std::string_view precision,
                  v1::HardwareProfile* profile) {
  for (v1::KernelRate& kernel : *profile->mutable_kernels()) {
    if (!is(kernel) || (!precision.empty() && kernel.precision() != Absl(precision))) continue;
    kernel.set_flops_per_second(kernel.flops_per_second() * factor);
  }
}

// Where a profile has no kernels of a precision, its peaks stand for them.
void ScalePeaks(double factor, v1::HardwareProfile* profile) {
  profile->set_f32_flops_per_second(profile->f32_flops_per_second() * factor);
  profile->set_tf32_flops_per_second(profile->tf32_flops_per_second() * factor);
  profile->set_bf16_flops_per_second(profile->bf16_flops_per_second() * factor);
  profile->set_fp8_flops_per_second(profile->fp8_flops_per_second() * factor);
}

void ScaleLinks(std::string_view scope, double factor, v1::HardwareProfile* profile) {
  for (v1::LinkRate& link : *profile->mutable_links()) {
    if (link.scope() != Absl(scope)) continue;
    link.set_bytes_per_second(link.bytes_per_second() * factor);
    link.set_latency_seconds(link.latency_seconds() / factor);
  }
}

}  // namespace

std::string RateName(Rate rate, std::string_view precision) {
  switch (rate) {
    case Rate::kMatmul:
      return absl::StrCat("matmul, ", Absl(precision));
    case Rate::kAttention:
      return "attention";
    case Rate::kMemory:
      return "device memory";
    case Rate::kLaunch:
      return "kernel launches";
    case Rate::kNode:
      return "links inside a node";
    case Rate::kNetwork:
      return "links between nodes";
    case Rate::kHostLink:
      return "copies between host and device";
    case Rate::kHostMemory:
      return "host memory";
    case Rate::kNvme:
      break;
  }
  return "NVMe";
}

v1::HardwareProfile WithRate(v1::HardwareProfile profile, Rate rate, double factor,
                             std::string_view precision) {
  const TierRates tiers = TierRatesOf(profile);
  switch (rate) {
    case Rate::kMatmul:
      ScaleKernels(IsProduct, factor, precision, &profile);
      if (precision.empty()) ScalePeaks(factor, &profile);
      break;
    case Rate::kAttention:
      ScaleKernels(IsAttention, factor, precision, &profile);
      break;
    case Rate::kMemory:
      profile.set_memory_bytes_per_second(profile.memory_bytes_per_second() * factor);
      break;
    case Rate::kLaunch:
      profile.set_instruction_overhead_seconds(profile.instruction_overhead_seconds() / factor);
      break;
    case Rate::kNode:
      ScaleLinks("node", factor, &profile);
      break;
    case Rate::kNetwork:
      ScaleLinks("network", factor, &profile);
      break;
    case Rate::kHostLink:
      profile.set_to_device_bytes_per_second(tiers.to_device * factor);
      profile.set_to_host_bytes_per_second(tiers.to_host * factor);
      break;
    case Rate::kHostMemory:
      profile.set_host_memory_bytes_per_second(tiers.host_memory * factor);
      break;
    case Rate::kNvme:
      profile.set_nvme_read_bytes_per_second(tiers.nvme_read * factor);
      profile.set_nvme_write_bytes_per_second(tiers.nvme_write * factor);
      break;
  }
  return profile;
}

}  // namespace terrace
