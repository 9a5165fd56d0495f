// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/daemon.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/http/metrics_server.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/name.h"
#include "base/status_macros.h"
#include "base/stop_signals.h"
#include "base/utf8.h"
#include "proto/peak_flops.h"
#include "worker/confine/landlock.h"
#include "worker/confine/syscall_filter.h"
#include "worker/daemon/log_reader.h"
#include "worker/daemon/metrics.h"
#include "worker/daemon/peers.h"
#include "worker/daemon/profile_keeper.h"
#include "worker/daemon/program_cache.h"
#include "worker/daemon/supervisor.h"

namespace terrace {
namespace {

// Where somebody follows a log, or where the coordinator does not take what is to be told.
constexpr absl::Duration kPoll = absl::Milliseconds(250);
constexpr size_t kEventsKeptMax = 1024;  // while the coordinator is away; the oldest go first
constexpr absl::Duration kKillGrace = absl::Seconds(2);

// A rank knows the FLOPs of its step, the daemon what the device can do.
void SetMfu(const v1::HardwareProfile& profile, Supervisor::Metrics* rank) {
  const double peak = PeakFlops(profile, rank->precision);
  if (peak > 0) rank->metrics.set_mfu_ratio(rank->metrics.flops_per_second() / peak);
}

// All members but the agent are used only on the loop.
class Daemon {
 public:
  // `data_address` is that of the machine; node.data_address() has a port as well.
  Daemon(const DaemonOptions& options, const v1::Node& node, const std::string& data_address)
      : options_(options),
        data_address_(data_address),
        programs_(options.probe.state_directory),
        supervisor_({.state_directory = options.probe.state_directory,
                     .rank_binary = options.probe.rank_binary,
                     .data_address = data_address,
                     .die_with_daemon = options.stop_ranks_on_exit,
                     .privileges = options.privileges,
                     .rank_environment = options.rank_environment,
                     .confine = options.confine,
                     .capacity = {.device_bytes = node.device_memory_bytes(),
                                  .host_bytes = node.memory_bytes()}},
                    {.post = [this](std::function<void()> work) { loop_.Post(std::move(work)); },
                     .to_coordinator = [this](const v1::WorkerMessage& m) { ToCoordinator(m); },
                     .changed = [this] { heartbeat_due_ns_ = 0; }},
                    programs_),
        logs_(options.probe.state_directory,
              {.send = [this](const v1::WorkerMessage& m) { return agent_->Send(m); },
               .is_live = [this](std::string_view job,
                                 uint32_t rank) { return supervisor_.IsLive(job, rank); }}),
        profile_({.rank_binary = options.probe.rank_binary, .of = ProbeArguments(node)},
                 {.post = [this](std::function<void()> work) { loop_.Post(std::move(work)); },
                  .changed = [this](const v1::HardwareProfile& p) { ProfileChanged(p); }},
                 node.profile()) {}

  absl::Status Start(v1::Node node) {
    Agent::Options agent = options_.agent;
    agent.node = std::move(node);
    ASSIGN_OR_RETURN(
        agent_,
        Agent::Create(std::move(agent),
                      {.on_registered =
                           [this](const v1::RegisterReply& reply) {
                             loop_.Post([this, reply] { Registered(reply); });
                           },
                       .on_message =
                           [this](const v1::CoordinatorMessage& message) {
                             loop_.Post([this, message] { Handle(message); });
                           },
                       .on_disconnected = [this] { loop_.Post([this] { Disconnected(); }); }}));
    dialling_.Start(absl::InfiniteDuration(), [] { return absl::InfiniteDuration(); });
    loop_.Start(kPoll, [this] { return AfterBatch(); });
    // On the loop's thread: ranks that die with the daemon die with the thread that forked them.
    loop_.Post([this] { supervisor_.Adopt(); });
    agent_->Start();
    return absl::OkStatus();
  }

  // From any thread.
  absl::Status Reload() { return agent_->Reload(); }

  void Stop() {
    stopping_ = true;
    dialling_.Stop();
    agent_->Stop();  // first, or the coordinator would start again what is killed here
    if (options_.stop_ranks_on_exit) KillRanks();
    loop_.Call([this] { profile_.Stop(); });
    loop_.Stop();
  }

  bool TakeSnapshot(WorkerSnapshot* snapshot) {
    return loop_.Call([&] {
      snapshot->ranks = supervisor_.LiveMetrics();
      snapshot->connected = registered_;
      for (auto& rank : snapshot->ranks) SetMfu(profile_.present(), &rank);
    });
  }

 private:
  void Registered(const v1::RegisterReply& reply) {
    registered_ = true;
    heartbeat_ns_ = reply.heartbeat_ms() * 1'000'000;
    heartbeat_due_ns_ = 0;
    Report();
    supervisor_.Resend();
  }

  void Disconnected() {
    registered_ = false;
    logs_.Clear();
  }

  void Handle(const v1::CoordinatorMessage& message) {
    switch (message.message_case()) {
      case v1::CoordinatorMessage::kProgram:
        return TakeChunk(message.program());
      case v1::CoordinatorMessage::kStart:
        return supervisor_.Start(message.start());
      case v1::CoordinatorMessage::kGo:
        return supervisor_.Go(message.go());
      case v1::CoordinatorMessage::kStop:
        return supervisor_.Stop(message.stop());
      case v1::CoordinatorMessage::kKvValues:
        return supervisor_.Answer(message.kv_values());
      case v1::CoordinatorMessage::kReadLog:
        return logs_.Handle(message.read_log());
      case v1::CoordinatorMessage::kCheckPeer:
        return CheckPeer(message.check_peer());
      case v1::CoordinatorMessage::kDoubtProfile:
        return profile_.Doubt(DoubtText(message.doubt_profile()));
      case v1::CoordinatorMessage::kDump:
        return supervisor_.Dump(message.dump());
      default:
        log::Warn("a coordinator message of kind ", message.message_case(), " is unknown");
    }
  }

  void TakeChunk(const v1::ProgramChunk& chunk) {
    supervisor_.ProgramComes(chunk.sha256());
    const absl::StatusOr<bool> complete =
        chunk.error().empty() ? programs_.Add(chunk) : absl::UnavailableError(chunk.error());
    if (!complete.ok()) {
      supervisor_.ProgramFailed(chunk.sha256(), complete.status());
    } else if (*complete) {
      supervisor_.ProgramArrived(chunk.sha256());
    }
  }

  // On a thread of its own: it waits for those who do not answer.
  void CheckPeer(const v1::CheckPeer& check) {
    dialling_.Post([this, check] {
      if (stopping_) return;
      const absl::Status dialled =
          DialPeer(data_address_, check.data_address(), check.worker(), stopping_);
      if (stopping_) return;
      v1::WorkerMessage message;
      v1::PeerChecked& checked = *message.mutable_peer_checked();
      checked.set_worker(check.worker());
      checked.set_data_address(check.data_address());
      if (!dialled.ok()) {
        log::Warn("worker ", check.worker(), " cannot be reached: ", dialled.message());
        checked.set_error(std::string(dialled.message()));
      }
      agent_->Send(message);
    });
  }

  static std::string DoubtText(const v1::DoubtProfile& doubt) {
    return absl::StrFormat("the steps of job %s took %.2g times what it predicted",
                           CleanLine(doubt.job()), doubt.ratio());
  }

  void ProfileChanged(const v1::HardwareProfile& profile) {
    agent_->SetProfile(profile);
    v1::WorkerMessage message;
    *message.mutable_profile() = profile;
    agent_->Send(message);  // dropped without a coordinator: the next registration has it
  }

  // Events wait for the end of the batch, and while the coordinator is away.
  void ToCoordinator(const v1::WorkerMessage& message) {
    if (message.events_size() == 0) {
      agent_->Send(message);
      return;
    }
    events_.insert(events_.end(), message.events().begin(), message.events().end());
    while (events_.size() > kEventsKeptMax) events_.pop_front();
  }

  absl::Duration AfterBatch() {
    absl::Duration wait = std::min({supervisor_.SampleMemory(), supervisor_.SampleProgress(),
                                    profile_.Advance(!supervisor_.HasLiveRank(), absl::Now())});
    if (logs_.active()) {
      logs_.Poll();
      wait = std::min(wait, kPoll);
    }
    if (!registered_) return wait;
    wait = std::min(wait, supervisor_.AdvanceStarts());
    if (!events_.empty() || clock_.MonotonicNanos() >= heartbeat_due_ns_) Report();
    if (!events_.empty()) wait = std::min(wait, kPoll);
    return std::min(wait, absl::Nanoseconds(heartbeat_due_ns_ - clock_.MonotonicNanos()));
  }

  // The events that wait, and the heartbeat when it is due or nearly so: ranks tell their steps a
  // little more often than that, and one message costs half of two.
  void Report() {
    v1::WorkerMessage message;
    const int64_t now_ns = clock_.MonotonicNanos();
    if (now_ns >= heartbeat_due_ns_ - heartbeat_ns_ / 2) {
      *message.mutable_heartbeat() = supervisor_.Reports();
      heartbeat_due_ns_ = now_ns + heartbeat_ns_;
    }
    for (const v1::JobEvent& event : events_) *message.add_events() = event;
    if (agent_->Send(message)) events_.clear();
  }

  void KillRanks() {
    const absl::Time deadline = absl::Now() + kKillGrace;
    bool live = true;
    while (live && absl::Now() < deadline) {
      loop_.Call([&] {
        supervisor_.KillAll();
        live = !supervisor_.LiveMetrics().empty();
      });
      if (live) absl::SleepFor(absl::Milliseconds(5));
    }
  }

  const DaemonOptions options_;
  const std::string data_address_;
  const SystemClock clock_;
  ProgramCache programs_;
  Supervisor supervisor_;
  LogReader logs_;
  ProfileKeeper profile_;
  bool registered_ = false;
  int64_t heartbeat_ns_ = 0;
  int64_t heartbeat_due_ns_ = 0;
  std::deque<v1::JobEvent> events_;  // to tell
  std::atomic<bool> stopping_ = false;
  std::unique_ptr<Agent> agent_;
  Loop dialling_;
  Loop loop_;  // last: stopped before what it uses
};

// Of the drives that ranks offload to; 0: none does. On a scrape's thread: a file system may be
// slow to answer.
int64_t LeastAvailable(const std::vector<Supervisor::Metrics>& ranks) {
  int64_t least = 0;
  for (const Supervisor::Metrics& rank : ranks) {
    for (const std::string& path : rank.nvme_paths) {
      const int64_t bytes = AvailableBytes(path);
      if (bytes > 0 && (least == 0 || bytes < least)) least = bytes;
    }
  }
  return least;
}

RankConfinement ConfinementOf(const DaemonOptions& options) {
  const std::optional<RankUser>& user = options.privileges.user;
  const ConfineOptions& confine = options.confine;
  return {.user = user.has_value() ? user->name : absl::StrCat("uid ", geteuid()),
          .landlock = confine.sandbox ? LandlockVersion() : 0,
          .seccomp = confine.sandbox && HasSeccomp(),
          .roots = confine.roots.any()};
}

absl::StatusOr<std::unique_ptr<HttpServer>> StartMetrics(const DaemonOptions& options,
                                                         const v1::Node& node, Daemon* daemon) {
  const Agent::Options& agent = options.agent;
  return ServeMetrics(
      {.address = options.metrics_listen,
       .insecure = options.metrics_insecure || (agent.insecure && agent.tls_cert.empty()),
       .tls_cert = agent.tls_cert,
       .tls_key = agent.tls_key,
       .tls_ca = agent.tls_ca},
      [node, daemon, confinement = ConfinementOf(options),
       reader = std::make_shared<NodeUseReader>()]() -> std::string {
        WorkerSnapshot snapshot;
        if (!daemon->TakeSnapshot(&snapshot)) return "";
        snapshot.devices = node.devices();
        snapshot.device_memory_bytes = node.device_memory_bytes();
        snapshot.memory_bytes = node.memory_bytes();
        snapshot.version = node.version();
        snapshot.use = reader->Read();
        snapshot.confinement = confinement;
        snapshot.nvme_available_bytes = LeastAvailable(snapshot.ranks);
        return WorkerMetricsText(snapshot);
      });
}

// Once, not in the log of each rank.
void SayHowConfined(const ConfineOptions& confine) {
  if (!confine.sandbox) {
    log::Warn("ranks are not confined: --no-rank-sandbox");
  } else if (LandlockVersion() == 0 || !HasSeccomp()) {
    log::Warn("this kernel confines ranks less than others: ", DescribeSandbox(),
              "; docs/security.md says what that leaves them");
  } else {
    log::Info("ranks are confined by ", DescribeSandbox());
  }
  if (!confine.roots.any()) {
    log::Info(
        "jobs may name any path that ranks can read or write: there is no --data-root, "
        "--checkpoint-root, --cache-root or --offload-root");
  }
}

// Ranks read data that others wrote. What they could do as this user is said at the start, where
// somebody reads it.
absl::Status PrepareForRanks(const DaemonOptions& options) {
  const RankPrivileges& privileges = options.privileges;
  const std::string& state = options.probe.state_directory;
  RETURN_IF_ERROR(RankFiles(privileges.user).ShareFolder(state));
  if (geteuid() == 0 && !privileges.user.has_value()) {
    log::Warn(
        "this worker runs as root, and so do its ranks, though without capabilities: every file of "
        "root is theirs; name an unprivileged user with --rank-user");
  }
  RETURN_IF_ERROR(CheckRoots(options.confine.roots));
  std::vector<NeededPath> needed = {{state, X_OK, "--state-dir"},
                                    {options.probe.rank_binary, X_OK, "--rank-binary"}};
  for (const RootOption& option : RootOptions()) {
    for (const std::string& root : options.confine.roots.*option.roots)
      needed.push_back({root, X_OK, option.flag});
  }
  RETURN_IF_ERROR(CheckPaths(privileges, needed));
  SayHowConfined(options.confine);
  return absl::OkStatus();
}

}  // namespace

absl::Status RunDaemon(DaemonOptions options) {
  ASSIGN_OR_RETURN(StopSignals stop, StopSignals::Block(options.exit_with_parent));
  RETURN_IF_ERROR(stop.AlsoReload());
  RETURN_IF_ERROR(CheckName("--name", options.probe.name));
  const std::string& state = options.probe.state_directory;
  RETURN_IF_ERROR(MakeDirectories(state));
  absl::StatusOr<UniqueFd> lock = LockFile(state + "/lock", /*timeout_ms=*/0);
  if (!lock.ok()) {
    return absl::UnavailableError(absl::StrCat("--state-dir: ", lock.status().message(),
                                               ": another worker uses it; choose another"));
  }
  RETURN_IF_ERROR(PrepareForRanks(options));
  ASSIGN_OR_RETURN(v1::Node node, ProbeNode(options.probe));
  ASSIGN_OR_RETURN(const std::string data_address,
                   DataAddress(options.data_address, options.agent.coordinator));
  ASSIGN_OR_RETURN(const std::unique_ptr<PeerListener> listener,
                   PeerListener::Start(data_address, node.name()));
  node.set_data_address(listener->address());
  Daemon daemon(options, node, data_address);
  std::unique_ptr<HttpServer> metrics;
  if (!options.metrics_listen.empty()) {
    ASSIGN_OR_RETURN(metrics, StartMetrics(options, node, &daemon));
    const std::string host = options.metrics_listen.substr(0, options.metrics_listen.rfind(':'));
    node.set_metrics_address(absl::StrCat(host, ":", metrics->port()));
    log::Info("metrics on ", node.metrics_address());
  }
  RETURN_IF_ERROR(daemon.Start(node));
  log::Info("worker ", node.name(), " offers ", node.devices(), " ",
            node.device_name().empty() ? "devices" : node.device_name(), " with ",
            node.threads_per_device(), " threads each, at ", data_address, ", state in ", state);
  const auto reload = [&] {
    log::Info("reading the certificates again");
    if (const absl::Status status = daemon.Reload(); !status.ok()) {
      return log::Error("the certificates stay as they were: ", status.message());
    }
    if (metrics == nullptr || options.metrics_insecure || options.agent.tls_cert.empty()) return;
    metrics.reset();  // it listens at the same address
    auto again = StartMetrics(options, node, &daemon);
    if (!again.ok())
      return log::Error("after reading the certificates again: ", again.status().message());
    metrics = *std::move(again);
  };
  log::Info("stopping: ", stop.Wait(reload));
  daemon.Stop();
  return absl::OkStatus();
}

}  // namespace terrace
