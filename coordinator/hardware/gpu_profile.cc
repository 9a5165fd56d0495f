// SPDX-License-Identifier: Apache-2.0
#include "coordinator/hardware/gpu_profile.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "coordinator/hardware/catalogue.h"

namespace terrace {
namespace {

// Stands for a GPU that the catalogue lacks.
constexpr std::string_view kStandIn = "H100-80GB";
// Drivers differ by what they keep of the memory for themselves.
constexpr double kMemoryTolerance = 0.02;

absl::StatusOr<CatalogueDevice> InCatalogue(const GpuKind& gpu) {
  return FindDriverDevice(gpu.name, gpu.memory_bytes);
}

CatalogueDevice DeviceOf(const GpuKind& gpu) {
  const auto found = InCatalogue(gpu);
  return found.ok() ? *found : FindDevice(kStandIn).value();
}

bool HasScope(const v1::HardwareProfile& profile, const std::string& scope) {
  return std::any_of(profile.links().begin(), profile.links().end(),
                     [&](const v1::LinkRate& link) { return link.scope() == scope; });
}

bool IsRate(double value) { return std::isfinite(value) && value > 0; }

// Of what training cannot do without. Empty, or the figure that is none.
std::string_view MissingRate(const v1::HardwareProfile& profile) {
  if (!IsRate(profile.f32_flops_per_second())) return "f32_flops_per_second";
  if (!IsRate(profile.bf16_flops_per_second())) return "bf16_flops_per_second";
  if (!IsRate(profile.memory_bytes_per_second())) return "memory_bytes_per_second";
  if (!IsRate(profile.to_device_bytes_per_second())) return "to_device_bytes_per_second";
  if (!IsRate(profile.to_host_bytes_per_second())) return "to_host_bytes_per_second";
  for (const v1::KernelRate& rate : profile.kernels()) {
    if (!IsRate(rate.flops_per_second())) return "kernels[].flops_per_second";
  }
  for (const v1::LinkRate& link : profile.links()) {
    if (!IsRate(link.bytes_per_second())) return "links[].bytes_per_second";
  }
  return "";
}

}  // namespace

v1::HardwareProfile WhatIfProfile(const GpuKind& gpu) {
  v1::HardwareProfile profile = ProfileOf(DeviceOf(gpu), gpu.per_node);
  if (InCatalogue(gpu).ok()) return profile;
  profile.set_name(gpu.name.empty() ? absl::StrCat(profile.name(), ", as no GPU was measured here")
                                    : absl::StrCat(profile.name(), " in place of ", gpu.name,
                                                   ", which is not in the catalogue"));
  return profile;
}

int64_t WhatIfOverheadBytes(const GpuKind& gpu) {
  return OverheadOf(DeviceOf(gpu).generation).total();
}

std::string WhyNotOf(const GpuKind& gpu, const v1::HardwareProfile& profile) {
  if (profile.device() != "cuda") return "it is of no GPU";
  if (profile.name() != gpu.name) return absl::StrCat("it is of ", profile.name());
  const double off = std::abs(static_cast<double>(profile.device_memory_bytes()) /
                                  static_cast<double>(std::max<int64_t>(1, gpu.memory_bytes)) -
                              1);
  if (off > kMemoryTolerance) {
    return absl::StrCat("it is of one with ", profile.device_memory_bytes(),
                        " bytes of memory, not ", gpu.memory_bytes);
  }
  const std::string_view missing = MissingRate(profile);
  return missing.empty() ? "" : absl::StrCat("its ", Absl(missing), " is no rate");
}

v1::HardwareProfile RatesOf(const GpuKind& gpu, const v1::HardwareProfile& measured) {
  const v1::HardwareProfile paper = WhatIfProfile(gpu);
  if (!measured.measured() || !WhyNotOf(gpu, measured).empty()) return paper;
  v1::HardwareProfile profile = measured;
  if (InCatalogue(gpu).ok()) {
    profile.set_f32_flops_per_second(paper.f32_flops_per_second());
    profile.set_tf32_flops_per_second(paper.tf32_flops_per_second());
    profile.set_bf16_flops_per_second(paper.bf16_flops_per_second());
    profile.set_fp8_flops_per_second(paper.fp8_flops_per_second());
  }
  for (const v1::LinkRate& link : paper.links()) {
    if (!HasScope(measured, link.scope())) *profile.add_links() = link;
  }
  if (profile.link_bytes_per_second() <= 0) {
    profile.set_link_bytes_per_second(paper.link_bytes_per_second());
    profile.set_link_latency_seconds(paper.link_latency_seconds());
  }
  profile.set_ranks_per_node(paper.ranks_per_node());
  profile.set_communication_slowdown(paper.communication_slowdown());
  profile.set_host_memory_bytes_per_second(paper.host_memory_bytes_per_second());
  return profile;
}

std::string WarningOf(const GpuKind& gpu, const v1::HardwareProfile& measured) {
  const std::string why_not = measured.measured() ? WhyNotOf(gpu, measured) : "";
  std::string warning;
  if (!why_not.empty()) {
    warning = absl::StrCat("the profile of ", gpu.name, " is not used, as ", why_not,
                           ": terrace profile --refresh on that worker measures it");
  }
  if (InCatalogue(gpu).ok()) return warning;
  const bool own_rates = measured.measured() && why_not.empty();
  return absl::StrCat(
      warning, warning.empty() ? "" : "; ", "the catalogue of devices has no ", gpu.name, ": ",
      own_rates ? "layouts are chosen by the rates of " : "plans count the rates of ",
      Absl(kStandIn), own_rates ? ", and plans count" : " and",
      " what a process takes of it outside its arena");
}

}  // namespace terrace
