// terrace-rank probe: the profile of this machine, from the cache or measured now.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "worker/rank/environment.h"
#include "worker/rank/probe.h"
#include "worker/rank/probe_cache.h"
#include "worker/rank/probe_text.h"
#include "worker/rank/tool_output.h"
#include "worker/rank/tools.h"

namespace terrace {
namespace {

struct ProbeOptions {
  int threads = 0;
  bool brief = false;
  bool refresh = false;
  std::string nvme;
  std::string output = "text";
};

// On standard error, so that the result alone is on standard output.
class Progress {
 public:
  explicit Progress(int threads) : terminal_(::isatty(STDERR_FILENO) == 1), threads_(threads) {}
  ~Progress() {
    if (terminal_ && shown_) std::fputs("\r\033[K", stderr);
  }
  void Show(std::string_view what, double done) {
    if (terminal_) {
      std::fprintf(stderr, "\rmeasuring this machine, %d threads a rank: %3.0f %%, %-14s", threads_,
                   100 * done, std::string(what).c_str());
    } else if (!shown_) {
      std::fprintf(stderr, "measuring this machine, %d threads a rank, once\n", threads_);
    }
    shown_ = true;
  }

 private:
  const bool terminal_;
  const int threads_;
  bool shown_ = false;
};

// Raised when the probe measures otherwise, so that what was kept before is measured again.
constexpr std::string_view kProbeVersion = TERRACE_VERSION ".3";

bool IsEnough(const v1::HardwareProfile& profile, const ProbeOptions& options) {
  if (options.refresh || !options.nvme.empty()) return false;
  const size_t brief = ProbeCases(ProbeDepth::kBrief).size();
  return options.brief || static_cast<size_t>(profile.kernels_size()) > brief;
}

absl::StatusOr<v1::HardwareProfile> Profile(const ProbeOptions& options, int threads) {
  const ProbeCache cache =
      ProbeCache::Open(ProfileFolder(), threads, MachineHash(ThisMachine(), kProbeVersion));
  std::string why_not;
  const std::optional<v1::HardwareProfile> kept = cache.Read(&why_not);
  if (kept && IsEnough(*kept, options)) return *kept;
  if (!why_not.empty()) std::fprintf(stderr, "%s: measuring again\n", why_not.c_str());
  Progress progress(threads);
  ASSIGN_OR_RETURN(
      v1::HardwareProfile profile,
      MeasureMachine({.threads = threads,
                      .depth = options.brief ? ProbeDepth::kBrief : ProbeDepth::kThorough,
                      .nvme = options.nvme},
                     kProbeVersion,
                     [&](std::string_view what, double done) { progress.Show(what, done); }));
  if (kept && options.nvme.empty()) {
    // A drive is measured only when it is named.
    *profile.mutable_nvme_rates() = kept->nvme_rates();
    profile.set_nvme_read_bytes_per_second(kept->nvme_read_bytes_per_second());
    profile.set_nvme_write_bytes_per_second(kept->nvme_write_bytes_per_second());
    profile.set_nvme_duplex_ratio(kept->nvme_duplex_ratio());
  }
  if (const absl::Status written = cache.Write(profile); !written.ok()) {
    std::fprintf(stderr, "the measured profile is not kept: %s\n",
                 std::string(written.message()).c_str());
  }
  return profile;
}

int Run(const ProbeOptions& options, char** argv) {
  const int cores = static_cast<int>(ThisMachine().cores);
  const int threads = options.threads > 0 ? options.threads : cores;
  RestartWithEnvironment(argv, threads, /*share_cores=*/threads < cores);
  const bool json = options.output == "json";
  const auto profile = Profile(options, threads);
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
  probe->add_flag("--brief", options->brief, "Few shapes, in a few seconds, if nothing is kept");
  probe->add_flag("--refresh", options->refresh, "Measure although a profile is kept");
  probe->add_option("--nvme", options->nvme, "Folder whose drive is measured as well");
  probe->add_option("-o", options->output, "text or json")
      ->check(CLI::IsMember({"text", "json", "table"}));
  probe->callback([options, argv, exit_code] { *exit_code = Run(*options, argv); });
}

}  // namespace terrace
