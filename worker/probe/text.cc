// SPDX-License-Identifier: Apache-2.0
#include "worker/probe/text.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace terrace {
namespace {

struct Span {
  const v1::KernelRate* slowest = nullptr;
  const v1::KernelRate* fastest = nullptr;
};

std::string Shape(const v1::KernelRate& rate) {
  return absl::StrCat(rate.rows(), " x ", rate.columns(), " x ", rate.inner());
}

std::string Line(std::string_view name, const std::string& text) {
  return absl::StrFormat("  %-26s %s\n", std::string(name), text);
}

std::string Rate(double bytes_per_second) {
  return absl::StrFormat("%.2f GB/s", bytes_per_second * 1e-9);
}

}  // namespace

std::string ProfileText(const v1::HardwareProfile& profile) {
  const bool cuda = profile.device() == "cuda";
  const std::string of = cuda ? absl::StrCat("; driver for ", profile.driver())
                              : absl::StrCat("; a rank of ", profile.threads(),
                                             profile.threads() == 1 ? " thread" : " threads");
  std::string text = absl::StrCat(profile.name(), of, " (", profile.hardware(), ")\n");
  if (!profile.doubt().empty()) absl::StrAppend(&text, "  in doubt: ", profile.doubt(), "\n");
  std::map<std::pair<std::string, std::string>, Span> kernels;
  for (const v1::KernelRate& rate : profile.kernels()) {
    Span& span = kernels[{rate.kernel(), rate.precision()}];
    const double now = rate.flops_per_second();
    if (span.slowest == nullptr || now < span.slowest->flops_per_second()) span.slowest = &rate;
    if (span.fastest == nullptr || now > span.fastest->flops_per_second()) span.fastest = &rate;
  }
  for (const auto& [name, span] : kernels) {
    absl::StrAppend(
        &text, Line(absl::StrCat(name.first, " ", name.second),
                    absl::StrFormat("%6.1f to %6.1f GFLOP/s   slowest at %s, fastest at %s",
                                    span.slowest->flops_per_second() * 1e-9,
                                    span.fastest->flops_per_second() * 1e-9, Shape(*span.slowest),
                                    Shape(*span.fastest))));
  }
  absl::StrAppend(
      &text, Line("memory", Rate(profile.memory_bytes_per_second())),
      Line("copy to device, to host", absl::StrFormat("%s, %s; both at once %.0f %% of the sum",
                                                      Rate(profile.to_device_bytes_per_second()),
                                                      Rate(profile.to_host_bytes_per_second()),
                                                      100 * profile.copy_duplex_ratio())),
      Line("instruction",
           absl::StrFormat("%.1f us, %.1f us until another stream goes on, %.1f us with "
                           "all its threads",
                           profile.instruction_overhead_seconds() * 1e6,
                           profile.wake_seconds() * 1e6,
                           (profile.wake_seconds() + profile.team_wake_seconds()) * 1e6)));
  for (const v1::LinkRate& link : profile.links()) {
    absl::StrAppend(&text, Line(absl::StrCat("link of ", link.ranks(), " ranks"),
                                absl::StrFormat("%s, %.0f us", Rate(link.bytes_per_second()),
                                                link.latency_seconds() * 1e6)));
  }
  if (!cuda) {
    absl::StrAppend(
        &text, Line("compute beside a sum",
                    absl::StrFormat("%.0f %% slower", 100 * profile.communication_slowdown())));
  }
  for (const v1::NvmeRate& rate : profile.nvme_rates()) {
    absl::StrAppend(&text,
                    Line(absl::StrCat("NVMe at depth ", rate.queue_depth()),
                         absl::StrFormat("read %s, write %s", Rate(rate.read_bytes_per_second()),
                                         Rate(rate.write_bytes_per_second()))));
  }
  return text;
}

}  // namespace terrace
