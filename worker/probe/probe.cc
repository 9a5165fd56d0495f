// SPDX-License-Identifier: Apache-2.0
#include "worker/probe/probe.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "kernels/cpu/registry.h"
#include "worker/probe/kernels.h"
#include "worker/probe/link.h"
#include "worker/probe/memory.h"

namespace terrace {
namespace {

constexpr int kRanksMax = 8;           // that are measured together
constexpr double kKernelShare = 0.75;  // of the time

}  // namespace

absl::StatusOr<MeasuredMachine> MeasureMachine(const ProbeRequest& request,
                                               std::string_view version,
                                               const ProbeWatcher& watcher) {
  const Machine machine = ThisMachine();
  const int ranks = std::clamp(static_cast<int>(machine.cores) / request.threads, 1, kRanksMax);
  MeasuredMachine measured;
  v1::HardwareProfile& profile = measured.profile;
  profile.set_name(absl::StrCat(kernels::cpu::InstructionSet(), ", ", machine.processor, ", ",
                                machine.cores, machine.cores == 1 ? " core" : " cores"));
  profile.set_hardware(MachineHash(machine, version));
  profile.set_cores(machine.cores);
  profile.set_threads(static_cast<uint32_t>(request.threads));
  profile.set_shared_cores(true);
  if (!request.nvme.empty()) {
    // First: a folder that cannot be used is known at once.
    watcher("drive", 0);
    RETURN_IF_ERROR(MeasureNvme(request.nvme, &profile));
  }
  {
    ASSIGN_OR_RETURN(KernelProbe kernels, KernelProbe::Create(request.threads, ranks));
    kernels.Measure(
        request.depth, [&](double done) { watcher("kernels", kKernelShare * done); }, &profile);
    measured.spread = kernels.spread();
    measured.cut_short = kernels.cut_short();
  }
  watcher("copies", kKernelShare);
  RETURN_IF_ERROR(MeasureCopies(&profile));
  watcher("instructions", kKernelShare + 0.05);
  RETURN_IF_ERROR(MeasureStreams(request.threads, &profile));
  watcher("links", kKernelShare + 0.1);
  RETURN_IF_ERROR(MeasureLinks(ranks, request.threads, &profile));
  profile.set_measured(true);
  return measured;
}

}  // namespace terrace
