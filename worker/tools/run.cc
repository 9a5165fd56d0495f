// terrace-rank run: one rank of a job, from its configuration to its end.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/exit_code.h"
#include "base/file.h"
#include "base/log.h"
#include "base/log_listener.h"
#include "base/status_macros.h"
#include "base/stop_signals.h"
#include "proto/tokens/token_file.h"
#include "worker/confine/confine.h"
#include "worker/data/chat/template_process.h"
#include "worker/rank/environment.h"
#include "worker/rank/program_file.h"
#include "worker/rank/rank_process.h"
#include "worker/reporting/failure.h"
#include "worker/tools/tools.h"

namespace terrace {
namespace {

struct RunOptions {
  std::string config;
  bool daemon = false;
  ConfineOptions confine;
  bool no_sandbox = false;
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

// Before it may write nowhere else.
absl::Status MakeFolder(const SpecPath& path) {
  const absl::Status made = MakeDirectories(path.path);
  if (made.ok()) return made;
  const bool is_checkpoint = path.field == "checkpoint.directory";
  return WithReason(
      absl::Status(made.code(), absl::StrCat(path.field, ": ", made.message(),
                                             "; name a folder that this worker can write")),
      is_checkpoint ? v1::REASON_CHECKPOINT_ERROR : v1::REASON_DATA_ERROR);
}

// The reasons are those of input: what a worker does not allow stays so after a restart.
absl::Status Confine(const v1::RankConfig& config, const ConfineOptions& options) {
  RETURN_IF_ERROR(WithReason(CheckPathsOf(config.spec(), options.roots), v1::REASON_INVALID_SPEC));
  for (const SpecPath& path : PathsOf(config.spec())) {
    if (path.is_made) RETURN_IF_ERROR(MakeFolder(path));
  }
  return ConfineRank(config, options);
}

bool HasJsonLines(const v1::DataSpec& data) {
  const auto is_json = [](const std::string& path) {
    const absl::StatusOr<DataFileKind> kind = DataFileKindOf(path);
    return kind.ok() && *kind == DataFileKind::kJsonLines;
  };
  return std::any_of(data.train().begin(), data.train().end(), is_json) ||
         std::any_of(data.validation().begin(), data.validation().end(), is_json);
}

// What renders conversations, where there may be any: afterwards no process can be started.
absl::Status StartTemplates(const v1::RankConfig& config, const ConfineOptions& options,
                            std::unique_ptr<TemplateProcess>* templates) {
  if (!HasJsonLines(config.spec().data())) return absl::OkStatus();
  ASSIGN_OR_RETURN(*templates, TemplateProcess::Start([&options](const std::string& python) {
    return ConfineTemplates(python, options);
  }));
  return absl::OkStatus();
}

// What is warned of before and between the steps decides what a job trains, or how fast: it is told
// like its other events, once, by its first rank.
void TellWarnings(const v1::RankConfig& config, Reporter* reporter) {
  if (config.rank() != 0) return;
  struct Told {
    absl::Mutex mutex;
    std::set<std::string> texts;
  };
  log::ListenToWarnings([reporter, told = std::make_shared<Told>()](std::string_view text) {
    {
      absl::MutexLock lock(&told->mutex);
      constexpr size_t kToldMax = 100;  // a text with a number in it may come each step
      if (told->texts.size() >= kToldMax || !told->texts.emplace(text).second) return;
    }
    reporter->TellWarning(text);
  });
}

// `confined`: what came of it, which is reported as the rank's own end.
int RunRank(const v1::RankConfig& config, bool daemon, const absl::Status& confined,
            std::unique_ptr<TemplateProcess> templates) {
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
  if (!confined.ok()) {
    reporter.End(confined, /*stopped_early=*/false, ToInt(ExitCode::kFailure));
    return ToInt(ExitCode::kFailure);
  }
  std::thread(ServeSignals, &*signals, &commands, &reporter).detach();
  TellWarnings(config, &reporter);
  RankProcess process(config, daemon, &commands, &reporter, &clock, std::move(templates));
  const absl::StatusOr<bool> stopped_early = process.Run();
  const int exit_code = stopped_early.ok() ? 0 : ToInt(ExitCode::kFailure);
  log::ListenToWarnings({});
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
  // A rank that a person starts by hand may do what that person may.
  if (!options.daemon) return RunRank(*config, false, absl::OkStatus(), nullptr);
  std::unique_ptr<TemplateProcess> templates;
  absl::Status confined = StartTemplates(*config, options.confine, &templates);
  if (confined.ok()) confined = Confine(*config, options.confine);
  return RunRank(*config, true, confined, std::move(templates));
}

}  // namespace

void AddRunTool(CLI::App* app, char** argv, int* exit_code) {
  auto options = std::make_shared<RunOptions>();  // lives as long as the callback
  CLI::App* run = app->add_subcommand("run", "Run one rank of a job");
  run->add_option("--config", options->config,
                  "RankConfig: protobuf, or JSON when it ends in .json")
      ->required();
  run->add_flag("--daemon", options->daemon, "Serve the link in the run directory and wait for Go");
  for (const RootOption& option : RootOptions())
    run->add_option(option.flag, options->confine.roots.*option.roots, option.meaning);
  run->add_flag("--no-sandbox", options->no_sandbox, "With --daemon: without Landlock and seccomp");
  run->callback([options, argv, exit_code] {
    options->confine.sandbox = !options->no_sandbox;
    *exit_code = Run(*options, argv);
  });
}

}  // namespace terrace
