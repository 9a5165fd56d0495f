// terrace-rank probe: the profile of this machine or of its GPUs, from the cache or measured now.
//
// SPDX-License-Identifier: Apache-2.0
#include "worker/probe/probe.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/exit_code.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "worker/probe/cache.h"
#include "worker/probe/cpu_watch.h"
#include "worker/probe/device.h"
#include "worker/probe/kept.h"
#include "worker/probe/memory.h"
#include "worker/probe/progress.h"
#include "worker/probe/text.h"
#include "worker/rank/environment.h"
#include "worker/tools/output.h"
#include "worker/tools/tools.h"

namespace terrace {
namespace {

struct ProbeOptions {
  int threads = 0;
  bool brief = false;
  bool refresh = false;
  std::string doubt;           // why what is kept may be wrong; empty: a profile is asked for
  std::string device = "cpu";  // "cpu", "cuda"
  bool if_any = false;
  std::string nvme;
  std::string output = "text";
};

// Most of what a measurement takes on a machine that is busy with other work: on a quiet one the
// CPU takes 3 and 15 s. Whoever asked goes on with default rates.
absl::Duration LimitOf(const ProbeOptions& options, ProbeDepth depth) {
  const bool brief = depth == ProbeDepth::kBrief;
  if (options.device == "cuda") return brief ? absl::Minutes(2) : absl::Minutes(10);
  return brief ? absl::Seconds(45) : absl::Minutes(3);
}

bool IsEnough(const v1::HardwareProfile& profile, const ProbeOptions& options) {
  if (options.refresh || !options.nvme.empty()) return false;
  const auto target = options.device == "cuda" ? ProbeTarget::kGpu : ProbeTarget::kCpu;
  const size_t brief = ProbeCases(ProbeDepth::kBrief, target).size();
  return options.brief || static_cast<size_t>(profile.kernels_size()) > brief;
}

// A drive is measured only when it is named.
void KeepNvme(const v1::HardwareProfile& kept, v1::HardwareProfile* profile) {
  *profile->mutable_nvme_rates() = kept.nvme_rates();
  profile->set_nvme_read_bytes_per_second(kept.nvme_read_bytes_per_second());
  profile->set_nvme_write_bytes_per_second(kept.nvme_write_bytes_per_second());
  profile->set_nvme_duplex_ratio(kept.nvme_duplex_ratio());
}

// The driver's samples are of a second at the most.
constexpr absl::Duration kSettle = absl::Milliseconds(1500);
constexpr absl::Duration kQuietLook = absl::Milliseconds(300);

void Say(std::string_view sentence) { std::fprintf(stderr, "%s\n", std::string(sentence).c_str()); }

// Without the end of what hangs: the process is all that holds it.
void OutOfTime(const std::string& sentence) {
  std::fprintf(stderr, "\n%s\n", sentence.c_str());
  std::_Exit(ToInt(ExitCode::kFailure));
}

using Measure = std::function<absl::StatusOr<v1::HardwareProfile>(ProbeDepth, const ProbeWatcher&)>;

// What many shapes were measured of is not measured anew with few.
ProbeDepth DepthOf(const ProbeOptions& options, const v1::HardwareProfile* kept) {
  if (!options.brief) return ProbeDepth::kThorough;
  const auto target = options.device == "cuda" ? ProbeTarget::kGpu : ProbeTarget::kCpu;
  const size_t brief = ProbeCases(ProbeDepth::kBrief, target).size();
  const bool thorough = kept != nullptr && static_cast<size_t>(kept->kernels_size()) > brief;
  return thorough ? ProbeDepth::kThorough : ProbeDepth::kBrief;
}

absl::StatusOr<v1::HardwareProfile> KeptOrMeasured(const ProbeOptions& options,
                                                   const ProbeCache& cache, std::string_view what,
                                                   const Measure& measure, ProbeWatch* watch,
                                                   std::function<bool()> is_quiet) {
  if (!options.doubt.empty()) {
    RETURN_IF_ERROR(cache.SetDoubt(options.doubt));
    std::string why_not;
    v1::HardwareProfile kept = cache.Read(&why_not).value_or(v1::HardwareProfile());
    kept.set_doubt(options.doubt);
    return kept;
  }
  WantedProfile wanted;
  wanted.watch = watch;
  wanted.is_quiet = std::move(is_quiet);
  wanted.keeps_doubtful = options.device == "cpu";
  wanted.is_enough = [&](const v1::HardwareProfile& kept) { return IsEnough(kept, options); };
  wanted.measure = [&](const v1::HardwareProfile* kept) -> absl::StatusOr<v1::HardwareProfile> {
    const ProbeDepth depth = DepthOf(options, kept);
    // On standard error, so that the result alone is on standard output.
    ProbeProgress progress({.what = std::string(what),
                            .terminal = ::isatty(STDERR_FILENO) == 1,
                            .patience = {.limit = LimitOf(options, depth)},
                            .write = [](std::string_view text) { std::cerr << text << std::flush; },
                            .out_of_time = OutOfTime});
    ASSIGN_OR_RETURN(
        v1::HardwareProfile profile,
        measure(depth, [&](std::string_view now, double done) { progress.Show(now, done); }));
    if (kept != nullptr && options.nvme.empty()) KeepNvme(*kept, &profile);
    return profile;
  };
  return KeptOrMeasured(cache, wanted, Say);
}

ProbeCache OpenCache(const ProbeOptions& options, const std::string& kind, std::string hardware) {
  return ProbeCache::Open(ProfileFolder(), kind, std::move(hardware),
                          {.limit = LimitOf(options, DepthOf(options, nullptr)), .say = Say});
}

absl::StatusOr<v1::HardwareProfile> MachineProfile(const ProbeOptions& options, int threads,
                                                   const std::string& version) {
  const ProbeCache cache =
      OpenCache(options, absl::StrCat(threads), MachineHash(ThisMachine(), version));
  CpuWatch watch;
  return KeptOrMeasured(
      options, cache, absl::StrCat("this machine, ", threads, " threads a rank"),
      [&](ProbeDepth depth, const ProbeWatcher& watcher) -> absl::StatusOr<v1::HardwareProfile> {
        ASSIGN_OR_RETURN(MeasuredMachine measured,
                         MeasureMachine({.threads = threads, .depth = depth, .nvme = options.nvme},
                                        version, watcher));
        watch.SetSpread(measured.spread);
        watch.SetCutShort(measured.cut_short);
        return std::move(measured.profile);
      },
      &watch, [] { return CpuWatch::IsQuiet(kQuietLook); });
}

absl::StatusOr<v1::HardwareProfile> GpuProfile(const ProbeOptions& options,
                                               const std::vector<DeviceSummary>& devices,
                                               const std::string& version) {
  const ProbeCache cache = OpenCache(options, DeviceKind(devices), DeviceHash(devices, version));
  GpuWatch watch([&] { return LoadsOf(devices); }, kSettle);
  return KeptOrMeasured(
      options, cache, absl::StrCat(devices.size(), " x ", devices.front().name),
      [&](ProbeDepth depth, const ProbeWatcher& watcher) -> absl::StatusOr<v1::HardwareProfile> {
        v1::HardwareProfile drive;  // first: a folder that cannot be used is known at once
        if (!options.nvme.empty()) RETURN_IF_ERROR(MeasureNvme(options.nvme, &drive));
        ASSIGN_OR_RETURN(v1::HardwareProfile profile,
                         MeasureDevice(DeviceProbeOf(depth, devices), version, watcher));
        KeepNvme(drive, &profile);
        return profile;
      },
      &watch, [&watch] { return watch.IsQuiet(); });
}

// There was no GPU that can be used, and nobody insisted on one: no profile is printed.
constexpr int kNoGpu = 3;

// As the kernel's module lists them, which CUDA may still refuse: its libraries are of another
// version, or a device has failed. Not where somebody hides them.
bool HasGpu() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible != nullptr && (*visible == '\0' || std::string_view(visible) == "-1")) return false;
  std::error_code none;
  const std::filesystem::directory_iterator gpus("/proc/driver/nvidia/gpus", none);
  return !none && gpus != std::filesystem::directory_iterator();
}

int Run(const ProbeOptions& options, char** argv) {
  // Nobody reads the result once the command that asked has ended.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const std::string version = ProfileVersion(TERRACE_VERSION);
  absl::StatusOr<v1::HardwareProfile> profile;
  if (options.device == "cuda") {
    const auto devices = ListCudaDevices();
    if (!devices.ok() && options.if_any) {
      if (HasGpu()) {
        std::fprintf(stderr, "this machine has a GPU that cannot be used and is left out: %s\n",
                     std::string(devices.status().message()).c_str());
      }
      return kNoGpu;
    }
    profile = devices.ok() ? GpuProfile(options, *devices, version) : devices.status();
  } else {
    const int cores = static_cast<int>(ThisMachine().cores);
    const int threads = options.threads > 0 ? options.threads : cores;
    RestartWithEnvironment(argv, threads, /*share_cores=*/threads < cores);
    profile = MachineProfile(options, threads, version);
  }
  const bool json = options.output == "json";
  if (!profile.ok()) {
    return FailTool({.format = json ? ToolFormat::kJson : ToolFormat::kTable,
                     .out = std::cout,
                     .err = std::cerr},
                    profile.status());
  }
  if (json) {
    PrintJson(*profile, std::cout);
  } else {
    std::cout << ProfileText(*profile);
  }
  return 0;
}

}  // namespace

void AddProbeTool(CLI::App* app, char** argv, int* exit_code) {
  auto options = std::make_shared<ProbeOptions>();  // lives as long as the callback
  CLI::App* probe = app->add_subcommand("probe", "Measure this machine for plans");
  probe->add_option("--threads", options->threads, "Threads of one rank; 0: all cores")
      ->check(CLI::Range(0, 4096));
  probe->add_option("--device", options->device, "cpu, or cuda: the GPUs")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  probe->add_flag("--if-any", options->if_any,
                  "Where no GPU can be used print no profile and exit with 3");
  probe->add_flag("--brief", options->brief, "Few shapes, in a few seconds, if nothing is kept");
  probe->add_flag("--refresh", options->refresh, "Measure although a profile is kept");
  probe
      ->add_option("--doubt", options->doubt,
                   "Mark the kept profile as in doubt, for this reason, and measure nothing")
      ->excludes("--refresh");
  probe->add_option("--nvme", options->nvme, "Folder whose drive is measured as well");
  probe->add_option("-o", options->output, "text or json")
      ->check(CLI::IsMember({"text", "json", "table"}));
  probe->callback([options, argv, exit_code] { *exit_code = Run(*options, argv); });
}

}  // namespace terrace
