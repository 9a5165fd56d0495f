// terrace-rank run: one rank of a job, from its configuration to its end.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <csignal>
#include <memory>
#include <string>
#include <thread>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/exit_code.h"
#include "base/log.h"
#include "base/stop_signals.h"
#include "worker/rank/environment.h"
#include "worker/rank/program_file.h"
#include "worker/rank/rank_process.h"
#include "worker/tools/tools.h"

namespace terrace {
namespace {

struct RunOptions {
  std::string config;
  bool daemon = false;
};

// SIGTERM and SIGINT: finish the step, write a checkpoint, end; before the first step just end.
void ServeSignals(StopSignals* signals, Commands* commands, Reporter* reporter) {
  while (true) {
    log::Info("stops: ", signals->Wait());
    if (commands->Stop()) continue;
    reporter->End(absl::OkStatus(), /*stopped_early=*/true, 0);
    ::_exit(0);
  }
}

int RunRank(const v1::RankConfig& config, bool daemon) {
  auto signals = StopSignals::Block(/*watch_parent=*/false);
  if (!signals.ok()) {
    log::Error(signals.status().message());
    return ToInt(ExitCode::kFailure);
  }
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is a failed write, not a death
  const SystemClock clock;
  Commands commands;
  Reporter reporter(config, &clock);
  std::thread(ServeSignals, &*signals, &commands, &reporter).detach();
  RankProcess process(config, daemon, &commands, &reporter, &clock);
  const absl::StatusOr<bool> stopped_early = process.Run();
  const int exit_code = stopped_early.ok() ? 0 : ToInt(ExitCode::kFailure);
  reporter.End(stopped_early.status(), stopped_early.ok() && *stopped_early, exit_code);
  // Not by way of destructors: a peer that is lost must not keep this process from ending, and the
  // system takes the arenas back faster than we do.
  ::_exit(exit_code);
}

int Run(const RunOptions& options, char** argv) {
  const auto config = ReadRankConfig(options.config);
  if (!config.ok()) {
    log::Error(config.status().message());
    return ToInt(ExitCodeOf(config.status()));
  }
  RestartWithEnvironment(argv, std::max<int>(1, config->threads()), config->local_ranks() > 1);
  log::Init(absl::StrCat("rank ", config->rank()), log::Level::kInfo);
  return RunRank(*config, options.daemon);
}

}  // namespace

void AddRunTool(CLI::App* app, char** argv, int* exit_code) {
  auto options = std::make_shared<RunOptions>();  // lives as long as the callback
  CLI::App* run = app->add_subcommand("run", "Run one rank of a job");
  run->add_option("--config", options->config,
                  "RankConfig: protobuf, or JSON when it ends in .json")
      ->required();
  run->add_flag("--daemon", options->daemon, "Serve the link in the run directory and wait for Go");
  run->callback([options, argv, exit_code] { *exit_code = Run(*options, argv); });
}

}  // namespace terrace
