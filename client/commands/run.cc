// SPDX-License-Identifier: Apache-2.0
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/exit_code.h"
#include "base/status_macros.h"
#include "client/commands/commands.h"
#include "client/job_pages.h"
#include "client/live_display.h"
#include "client/local_cluster.h"
#include "client/print.h"
#include "client/spec_file.h"
#include "proto/report/plan_text.h"

namespace terrace {
namespace {

constexpr auto kSignalPoll = std::chrono::milliseconds(50);

// Ctrl-C once asks for a checkpoint and a clean stop, twice ends the ranks at once. SIGTERM counts
// as the first.
class StopSignals {
 public:
  StopSignals() {
    count_ = 0;
    struct sigaction action = {};
    action.sa_handler = [](int) { count_.fetch_add(1); };
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
  }
  static int count() { return count_.load(); }

 private:
  // A signal handler has no argument of ours; this is the one object it may touch.
  static inline std::atomic<int> count_ = 0;
};

void PrintPlan(const GlobalOptions& global, const v1::Job& job) {
  if (global.json()) {
    std::printf("{\"event\": \"plan\", \"job\": \"%s\", \"plan\": %s}\n", job.id().c_str(),
                ToJson(job.plan(), /*pretty=*/false).c_str());
  } else {
    std::printf("%s\n", PlanText(job.plan()).c_str());
  }
  std::fflush(stdout);
}

// Beside the watching: turns Ctrl-C into cancellations, and ends a job whose local coordinator or
// worker has died, for it would wait for ever.
class ForegroundWatch {
 public:
  ForegroundWatch(const GlobalOptions& global, LocalCluster& cluster, std::string job)
      : global_(global), cluster_(cluster), job_(std::move(job)), thread_([this] { Watch(); }) {}

  // Ends the guarding; whether all local processes lived so long.
  absl::Status Finish() {
    ended_ = true;
    thread_.join();
    return alive_.ok() ? cluster_.CheckAlive() : alive_;
  }

 private:
  void Watch() {
    while (!ended_) {
      HandleSignals();
      if (alive_.ok()) {
        alive_ = cluster_.CheckAlive();
        if (!alive_.ok()) Cancel(/*force=*/true).IgnoreError();  // the coordinator may be what died
      }
      std::this_thread::sleep_for(kSignalPoll);
    }
  }

  void HandleSignals() {
    const int count = std::min(StopSignals::count(), 2);
    if (count <= handled_) return;
    handled_ = count;
    const bool force = count > 1;
    std::fprintf(stderr, "%s\n",
                 force
                     ? "stopping at once"
                     : "stopping after this step with a checkpoint; Ctrl-C again to stop at once");
    if (const absl::Status cancelled = Cancel(force); !cancelled.ok()) Fail(global_, cancelled);
  }

  absl::Status Cancel(bool force) { return cluster_.connection().Cancel(job_, force).status(); }

  const GlobalOptions& global_;
  LocalCluster& cluster_;
  const std::string job_;
  int handled_ = 0;
  absl::Status alive_;
  std::atomic<bool> ended_ = false;
  std::thread thread_;  // last: it uses the others
};

// Shows the job's events until it has ended. The number of steps seen.
absl::StatusOr<int64_t> WatchToEnd(const GlobalOptions& global, LocalCluster& cluster,
                                   const std::string& id, LiveDisplay& display, RunLogs& logs) {
  ForegroundWatch guard(global, cluster, id);
  SystemClock clock;
  int64_t steps = 0;
  v1::WatchJobRequest request;
  request.set_id(id);
  const absl::Status status = cluster.connection().Watch(request, [&](const v1::JobEvent& event) {
    steps += event.has_step();
    logs.Add(event);
    if (global.json()) {
      std::printf("%s\n", EventLine(event).c_str());
      std::fflush(stdout);
    } else {
      display.Show(event, clock.MonotonicNanos() / 1'000'000);
    }
    return true;
  });
  RETURN_IF_ERROR(guard.Finish());
  if (!global.json()) display.Finish();
  RETURN_IF_ERROR(status);
  return steps;
}

struct Outcome {
  v1::Job job;
  int64_t steps_seen = 0;
  std::string state_directory;
};

// Names the best evaluation where that was not the last one; otherwise nothing is said.
std::string BestText(const v1::Progress& progress) {
  const int64_t best = progress.best_eval_step();
  if (best == 0 || best == progress.eval_step()) return "";
  return absl::StrFormat(", the best %.4f after step %d", progress.best_eval_loss(), best);
}

void PrintEnd(const GlobalOptions& global, const RunOptions& options, const Outcome& outcome) {
  const v1::Job& job = outcome.job;
  const v1::Progress& progress = job.progress();
  if (global.json()) {
    constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
    const double loss = HasStepped(progress) ? progress.loss() : kUnknown;
    const double eval_loss = progress.eval_step() > 0 ? progress.eval_loss() : kUnknown;
    const double best_loss = progress.best_eval_step() > 0 ? progress.best_eval_loss() : kUnknown;
    std::printf(
        "{\"event\": \"done\", \"state\": \"%s\", \"reason\": \"%s\", \"job\": \"%s\", \"step\": "
        "%ld, \"loss\": %s, "
        "\"eval_loss\": %s, \"best_eval_loss\": %s, \"best_eval_step\": %ld, \"checkpoint\": %s, "
        "\"logs\": %s, \"message\": %s}\n",
        std::string(StateName(job.state())).c_str(), ReasonName(job.reason()).c_str(),
        job.id().c_str(), static_cast<long>(progress.step()), JsonNumber(loss).c_str(),
        JsonNumber(eval_loss).c_str(), JsonNumber(best_loss).c_str(),
        static_cast<long>(progress.best_eval_step()), JsonString(progress.checkpoint()).c_str(),
        JsonString(outcome.state_directory).c_str(), JsonString(job.message()).c_str());
    return;
  }
  std::printf("\n%s", std::string(StateName(job.state())).c_str());
  if (!job.message().empty()) std::printf(": %s", job.message().c_str());
  std::printf("\n");
  if (job.state() == v1::SUCCEEDED && outcome.steps_seen == 0) {
    std::printf(
        "nothing was left to do: step %ld was reached before; raise train.steps to train on, or "
        "name another "
        "checkpoint.directory to train anew\n",
        static_cast<long>(progress.step()));
  }
  if (progress.eval_step() > 0)
    std::printf("validation loss  %.4f nats a token%s\n", progress.eval_loss(),
                BestText(progress).c_str());
  std::printf("logs             %s\n", outcome.state_directory.c_str());
  if (progress.checkpoint().empty()) return;
  const char* checkpoint = progress.checkpoint().c_str();
  std::printf("checkpoint       %s\n\nnext:\n", checkpoint);
  if (job.state() != v1::SUCCEEDED)
    std::printf("  terrace run %s            # goes on from there\n", options.spec_path.c_str());
  std::printf("  terrace generate %s --prompt \"In the beginning\"\n", checkpoint);
  if (job.spec().model().lora().rank() == 0) {
    std::printf("  terrace ckpt export %s --output exported    # for transformers\n", checkpoint);
    return;
  }
  std::printf("  terrace ckpt export %s --output adapter --adapter    # for PEFT\n", checkpoint);
  std::printf("  terrace ckpt merge %s --output merged    # for transformers\n", checkpoint);
}

// Allowed, and slow: a layout can be tried on any machine.
void WarnOfSharedCores(int ranks, int threads_per_rank) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int threads = std::max(1, threads_per_rank);
  if (ranks * threads <= cores) return;
  std::fprintf(stderr,
               "warning: %d ranks with %d %s each share the %d cores of this machine: they compute "
               "by turns\n",
               ranks, threads, threads == 1 ? "thread" : "threads", cores);
}

// The driver's control device is there where GPUs can be used.
void WarnOfGpusLeftOut(int nodes, const std::string& device) {
  std::error_code ignored;
  if (nodes <= 1 || device == "cpu" || !std::filesystem::exists("/dev/nvidiactl", ignored)) return;
  std::fprintf(stderr,
               "warning: %d nodes on one machine would each take its GPUs: they train on the CPU; "
               "to use the GPUs, set resources.nodes: 1 and devices_per_node: their number\n",
               nodes);
}

// Jobs of a run in this folder that was killed. The coordinator has kept them: they would start
// again beside this run's job, and keep it out of their checkpoint.directory.
absl::Status EndEarlierJobs(Connection& connection) {
  std::vector<std::string> jobs;
  RETURN_IF_ERROR(VisitPages(connection, v1::ListPageRequest(), /*limit=*/0,
                             [&jobs](const v1::ListPageResponse& page) {
                               for (const v1::JobSummary& job : page.summaries())
                                 jobs.push_back(job.id());
                             })
                      .status());
  for (const std::string& job : jobs) {
    RETURN_IF_ERROR(connection.Cancel(job, /*force=*/true).status());
    std::fprintf(stderr,
                 "job %s of an earlier run in this folder had not ended: it is cancelled, and what "
                 "it has saved stays\n",
                 job.c_str());
  }
  return absl::OkStatus();
}

absl::StatusOr<int> TrainOn(LocalCluster& cluster, v1::SubmitRequest request,
                            const GlobalOptions& global, const RunOptions& options) {
  RETURN_IF_ERROR(EndEarlierJobs(cluster.connection()));
  // The spec says how many ranks there are; parsing it is the coordinator's, so it is asked first.
  request.set_dry_run(true);
  ASSIGN_OR_RETURN(const v1::Job dry, cluster.connection().Submit(request));
  const v1::ResourceSpec& resources = dry.spec().resources();
  const int nodes = static_cast<int>(dry.plan().layout().nodes());
  const int devices = static_cast<int>(resources.devices_per_node());
  const int threads = static_cast<int>(resources.threads_per_device());
  WarnOfSharedCores(nodes * devices, threads);
  WarnOfGpusLeftOut(nodes, resources.device());
  RETURN_IF_ERROR(
      cluster.AddWorkers(nodes, devices, resources.device_memory(), threads, resources.device()));
  request.set_dry_run(false);
  ASSIGN_OR_RETURN(v1::Job job, cluster.connection().Submit(request));
  PrintPlan(global, job);
  LiveDisplay display(job, StandardOutputIsTerminal(), TerminalColumns());
  ASSIGN_OR_RETURN(RunLogs logs, RunLogs::Open(options.logs, job));
  ASSIGN_OR_RETURN(const int64_t steps_seen, WatchToEnd(global, cluster, job.id(), display, logs));
  ASSIGN_OR_RETURN(job, cluster.connection().Get(job.id()));
  logs.Finish(job);
  PrintEnd(global, options, {job, steps_seen, cluster.state_directory()});
  if (job.state() == v1::CANCELLED && StopSignals::count() > 0)
    return ToInt(ExitCode::kInterrupted);
  return ExitCodeOfJob(job);
}

absl::StatusOr<int> Run(const GlobalOptions& global, const RunOptions& options) {
  ASSIGN_OR_RETURN(v1::SubmitRequest request, ReadSpecFile(options.spec_path));
  RETURN_IF_ERROR(RunLogs::Check(options.logs));
  std::string state_directory = options.state_directory;
  if (state_directory.empty()) {
    ASSIGN_OR_RETURN(state_directory, FreshStateDirectory());
  }
  StopSignals signals;
  ASSIGN_OR_RETURN(std::unique_ptr<LocalCluster> cluster, LocalCluster::Start(state_directory));
  const absl::StatusOr<int> code = TrainOn(*cluster, std::move(request), global, options);
  if (!code.ok()) return cluster->CauseOf(code.status());
  return code;
}

}  // namespace

int RunCommand(const GlobalOptions& global, const RunOptions& options) {
  const absl::StatusOr<int> code = Run(global, options);
  return code.ok() ? *code : Fail(global, code.status());
}

}  // namespace terrace
