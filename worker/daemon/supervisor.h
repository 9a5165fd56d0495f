// The ranks of this node: carries out the coordinator's idempotent commands, and reports every rank
// it knows until it is told to forget it.
//
// Commands are fenced by epoch: one older than the newest seen of a job is refused. A new daemon
// finds the ranks of the old one in the run directories and goes on with them.
//
// Its parts: supervisor.cc, supervisor_start.cc for how ranks start, supervisor_messages.cc for
// what ranks say, supervisor_memory.cc for what they hold and supervisor_progress.cc for where they
// stand. Used only on the daemon's loop; rank processes call back through `post`.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "proto/v1/worker.pb.h"
#include "worker/confine/confine.h"
#include "worker/confine/privileges.h"
#include "worker/daemon/memory/memory_watch.h"
#include "worker/daemon/program_cache.h"
#include "worker/daemon/progress/progress_watch.h"
#include "worker/daemon/watched_process.h"

namespace terrace {

inline constexpr size_t kRendezvousKeysKept = 4096;  // of one rank, to send again
// Between two reports of a rank's memory: less than a heartbeat's, so that one which comes a little
// early brings it along.
inline constexpr int64_t kMemoryReportMs = 900;
inline constexpr int kOverLimitReports = 2;  // in a row: what goes by at once is let be

// RANK_SUCCEEDED or RANK_FAILED.
bool IsFinal(v1::RankState state);

class Supervisor {
 public:
  // What the steps of a start may take.
  struct Starting {
    int64_t ask_again_ms = 10'000;   // without a part of the program that was asked for
    int64_t program_ms = 60'000;     // without a part of it, in all
    int64_t retry_ms = 5'000;        // after what failed
    int64_t retry_for_ms = 30'000;   // then the rank has failed
    int64_t link_ms = 120'000;       // until a process answers
    int64_t prepare_ms = 3'600'000;  // without a word from one that prepares
  };
  struct Options {
    std::string state_directory;
    std::string rank_binary;
    std::string data_address;  // of the machine, for ranks on several
    bool die_with_daemon = false;
    RankPrivileges privileges = {};
    std::vector<std::string> rank_environment;  // names that pass beside those of the list
    ConfineOptions confine = {};
    MemoryWatch::Capacity capacity = {};
    Starting starting = {};
  };
  struct Ports {
    std::function<void(std::function<void()>)> post;               // onto the loop
    std::function<void(const v1::WorkerMessage&)> to_coordinator;  // events alone or none
    std::function<void()> changed;  // a report changed: send a heartbeat
  };

  Supervisor(const Options& options, Ports ports, ProgramCache& programs);
  ~Supervisor();

  // Finds the ranks that an earlier daemon left.
  void Adopt();

  void Start(const v1::StartRanks& start);
  void Go(const v1::Go& go);
  void Stop(const v1::StopRanks& stop);
  void Answer(const v1::KvValues& values);
  // A part of this program has come.
  void ProgramComes(std::string_view sha256);
  // Starts the ranks that waited for this program.
  void ProgramArrived(std::string_view sha256);
  // It cannot be had, or not be kept: the ranks that wait for it say so, and try again.
  void ProgramFailed(std::string_view sha256, const absl::Status& status);
  // While the coordinator is there: tries again what is due, gives up what is overdue. How long the
  // next may wait.
  absl::Duration AdvanceStarts();
  // After a (re)connection: keys, open waits and programs asked for may be lost with the old one.
  void Resend();
  // For the end of a daemon that takes its ranks along. Waits until they are dead.
  void KillAll();

  // Looks at the processes of the ranks whose turn it is. How long the next may wait.
  absl::Duration SampleMemory();
  absl::Duration SampleProgress();
  // Writes hang.txt into the run directories of the job's ranks, and a line into their logs.
  void Dump(const v1::DumpRanks& dump) const;

  // What a rank holds is told once each kMemoryReportMs, the rest each time.
  v1::Heartbeat Reports();
  bool IsLive(std::string_view job, uint32_t rank) const;
  bool HasLiveRank() const;  // also one that waits for its program

  struct Metrics {
    std::string job;
    uint32_t rank = 0;
    v1::RankMetrics metrics;
    v1::RankMemory memory;  // at this moment
    v1::RankPlace place;
    std::string precision;  // of the job: which peak its FLOPs compare with
    std::vector<HotLayer> hot_layers;
    std::vector<std::string> nvme_paths;  // folders that it may offload to
  };
  std::vector<Metrics> LiveMetrics() const;

 private:
  struct Key {
    std::string job;
    int64_t epoch = 0;
    uint32_t rank = 0;
    auto operator<=>(const Key&) const = default;
  };
  struct Rank {
    v1::RankConfig config;
    v1::RankReport report;   // what the coordinator is told; final only when the process has ended
    v1::RankReport claimed;  // the latest by the rank itself
    v1::RankMetrics metrics;
    int64_t told_step = 0;                // the newest that was passed on
    std::unique_ptr<MemoryWatch> memory;  // from its start
    int64_t memory_told_ms = 0;
    std::unique_ptr<ProgressWatch> progress;  // while its process lives
    std::unique_ptr<WatchedProcess> process;  // null: waits for its program, or has ended
    // Of a start: when the present step began or last moved on, and when it is tried again.
    int64_t step_since_ms = 0;
    int64_t next_try_ms = 0;
    bool start_failed = false;  // an attempt did
    int64_t heard_ms = 0;       // when the process last said anything
    std::string overdue;        // why it was killed before it trained
    bool ended = false;
    bool forget = false;  // as soon as it has ended
    bool go = false;
    bool stop_with_checkpoint = false;
    int over_limit = 0;  // reports in a row in which it exceeded a limit
    // It was asked to end with a checkpoint because it did: the report that counts then.
    std::optional<v1::RankReport> ran_out;
    std::vector<v1::KvSet> keys;
    std::map<uint64_t, v1::KvWait> waits;
  };

  void StartOne(const v1::RankConfig& config);
  void TryStart(const Key& key, Rank& rank);
  void Launch(const Key& key, Rank& rank, const std::string& program);
  static bool IsWaitingFor(const Rank& rank, std::string_view sha256);
  // After a failed attempt: another later, or the end.
  void Postpone(Rank& rank, const std::string& why);
  // By when a process must have said something.
  int64_t Deadline(const Rank& rank) const;
  // When the last rank that waits for a program is gone, the next is to ask for it at once.
  void ForgetAsked(const std::string& sha256);
  int64_t NowMs() const;
  void AdoptOne(const v1::RankConfig& config);
  WatchedProcess::Handlers HandlersOf(const Key& key);
  void Received(const Key& key, const v1::LinkMessage& message);
  void TakeReport(Rank& rank, const v1::RankReport& report);
  void PassOn(Rank& rank, const v1::LinkMessage& message);
  // Of a rank that died before it had told all of them.
  void PassOnUntoldSteps(Rank& rank);
  void Linked(const Key& key);
  void Ended(const Key& key, const std::string& how);
  void Fail(Rank& rank, v1::Reason reason, const std::string& message);
  void WatchMemory(Rank& rank, int64_t pid);
  void WatchProgress(Rank& rank, int64_t pid);
  // Leaves the page about a rank that did not end well in its run directory; the sentence of it.
  std::string Judge(Rank& rank, const std::string& how);
  // Asks a rank over a limit to end at the next step's boundary.
  void CheckLimits(Rank& rank);
  void ReportEnd(Rank& rank, const v1::RankReport& last, const std::string& how);
  void SendCommands(Rank& rank);
  void Forget(const Key& key);
  int64_t NewestEpoch(std::string_view job) const;

  const Options options_;
  const RankFiles files_;
  const Ports ports_;
  const SystemClock clock_;
  ProgramCache& programs_;
  WatchedPrograms watched_programs_;
  std::map<Key, Rank> ranks_;
  std::map<std::string, int64_t, std::less<>> asked_ms_;  // for which program, when last
};

}  // namespace terrace
