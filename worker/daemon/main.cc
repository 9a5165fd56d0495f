// terrace-worker: command line in, the daemon out. Wiring only.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/command_line.h"
#include "base/exit_code.h"
#include "base/interface_address.h"
#include "base/log.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "worker/daemon/daemon.h"
#include "worker/daemon/metrics.h"

namespace terrace {
namespace {

std::string HostName() {
  char name[256] = "worker";
  gethostname(name, sizeof name - 1);
  return name;
}

std::string DefaultStateDirectory() {
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  if (state != nullptr && *state != '\0') return absl::StrCat(state, "/terrace/worker");
  if (home != nullptr) return absl::StrCat(home, "/.local/state/terrace/worker");
  return "/var/lib/terrace/worker";
}

std::string SiblingBinary(const char* name) {
  std::error_code error;
  return (std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / name).string();
}

// What ranks may do (docs/security.md).
void AddRankOptions(CLI::App& app, DaemonOptions& options) {
  app.add_option_function<std::string>(
         "--rank-user",
         [&options](const std::string& text) {
           auto user = FindRankUser(text);
           if (!user.ok()) throw CLI::ValidationError(std::string(user.status().message()));
           options.privileges.user = *std::move(user);
         },
         "unprivileged user that ranks run as, where this worker runs as root; else its own")
      ->type_name("NAME");
  for (const RootOption& option : RootOptions())
    app.add_option(option.flag, options.confine.roots.*option.roots, option.meaning);
  app.add_flag("!--no-rank-sandbox", options.confine.sandbox,
               "ranks without Landlock and seccomp, for libraries that need what these refuse");
  app.add_option("--rank-env", options.rank_environment,
                 "names of variables that ranks get beside the listed ones")
      ->delimiter(',')
      ->envname("TERRACE_RANK_ENV");
  app.add_option_function<std::string>(
         "--rank-core-limit",
         [&options](const std::string& text) {
           if (text == "unlimited") {
             options.privileges.core_bytes = RLIM_INFINITY;
           } else {
             std::string size = text;
             if (const std::string bad = CLI::AsSizeValue(false)(size); !bad.empty())
               throw CLI::ValidationError("--rank-core-limit", bad);
             options.privileges.core_bytes = std::stoull(size);
           }
         },
         "bytes of a rank's core file (4GiB), or unlimited; 0: none")
      ->type_name("SIZE");
}

void AddOptions(CLI::App& app, DaemonOptions& options) {
  app.add_option("--coordinator", options.agent.coordinator, "host:port of the coordinator")
      ->capture_default_str();
  app.add_option("--name", options.probe.name, "name of this worker, unique in the cluster")
      ->capture_default_str();
  app.add_option("--device", options.probe.device,
                 "kind of devices: auto, cpu, cuda; auto: GPUs if any")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--devices", options.probe.devices,
                 "ranks that may run here at a time; one for each GPU, or 1")
      ->check(CLI::Range(1, 1024));
  app.add_option("--device-memory", options.probe.device_memory_bytes,
                 "bytes of each device (16GiB, 500MiB); a GPU's, or 90 % of the memory over all")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  app.add_option("--threads-per-device", options.probe.threads_per_device,
                 "CPU threads of a rank; cores / devices");
  app.add_option("--state-dir", options.probe.state_directory, "folder of runs, logs, programs")
      ->capture_default_str();
  app.add_option("--rank-binary", options.probe.rank_binary, "terrace-rank")->capture_default_str();
  AddRankOptions(app, options);
  app.add_option("--metrics-listen", options.metrics_listen,
                 "host:port or interface:port of /metrics; none if absent")
      ->transform(WithoutInterface);
  app.add_flag("--metrics-insecure", options.metrics_insecure, "/metrics off loopback without TLS");
  app.add_option(
      "--data-address", options.data_address,
      "address or interface for connections between ranks; that towards the coordinator");
  app.add_option("--tls-cert", options.agent.tls_cert, "PEM certificate of this worker");
  app.add_option("--tls-key", options.agent.tls_key, "PEM key of this worker");
  app.add_option("--tls-ca", options.agent.tls_ca, "PEM certificates of who signs coordinators");
  app.add_flag("--insecure", options.agent.insecure, "dial off loopback without TLS");
  app.add_flag("--stop-ranks-on-exit", options.stop_ranks_on_exit, "ranks end with this process");
  app.add_flag("--exit-with-parent", options.exit_with_parent, "end when the parent process ends");
}

int Exit(const absl::Status& status) {
  if (!status.ok()) {
    std::fprintf(stderr, "terrace-worker: %s\n", CleanText(Std(status.message())).c_str());
  }
  return ToInt(ExitCodeOf(status));
}

int PrintMetrics(bool json) {
  const std::vector<Metric> table = WorkerMetricTable();
  return std::fputs((json ? MetricTableJson(table) : MetricTableMarkdown(table)).c_str(), stdout) <
         0;
}

int Main(int argc, char** argv) {
  if (const absl::Status legible = CheckCommandLine(argc, argv); !legible.ok()) {
    return Exit(legible);
  }
  DaemonOptions options;
  options.agent.coordinator = "127.0.0.1:7070";
  options.probe.name = HostName();
  options.probe.state_directory = DefaultStateDirectory();
  options.probe.rank_binary = SiblingBinary("terrace-rank");
  std::string log_level = "info";
  CLI::App app("Runs the ranks of one node for a coordinator.", "terrace-worker");
  AddOptions(app, options);
  app.add_option("--log-level", log_level, "debug, info, warn or error")->capture_default_str();
  CLI::App* metrics = app.add_subcommand("metrics", "print what a worker's /metrics has");
  std::string output = "text";
  metrics->add_option("-o,--output", output, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  TakeWholeNumbersAsWritten(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : ToInt(ExitCode::kUsage);
  }
  if (metrics->parsed()) return PrintMetrics(output == "json");
  log::Init("worker", log::ParseLevel(log_level));
  return Exit(RunDaemon(std::move(options)));
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  return terrace::CloseOutput("terrace-worker", terrace::Main(argc, argv));
}
