// Tells the outside what the rank does: the level-triggered report, events and metrics over the
// link, lines in the log, and at the end exit.pb in the run directory, from which a daemon that was
// away learns the outcome.
//
// What is told at once and what waits for the next message of steps is the link's to know
// (link_server.h). Progress comes with the steps, metrics with some of them, about once a second.
// What waits to be told is also in the flight recorder, from which the daemon takes it if the rank
// is killed.
//
// What else comes while steps are taken comes behind the steps before it. After the end nothing is
// told.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/worker.pb.h"
#include "worker/flight/flight_recorder.h"
#include "worker/reporting/link_server.h"

namespace terrace {

inline constexpr int64_t kMetricsIntervalNs = 900'000'000;  // messages of steps come no more often

class Reporter {
 public:
  // Borrows all.
  Reporter(const v1::RankConfig& config, const Clock* clock);
  // Null: there are only the log and exit.pb.
  void SetLink(LinkServer* link) ABSL_LOCKS_EXCLUDED(mutex_);
  // Where steps are kept until they are told; null: nowhere.
  void SetFlight(FlightWriter* flight) ABSL_LOCKS_EXCLUDED(mutex_);

  void SetState(v1::RankState state) ABSL_LOCKS_EXCLUDED(mutex_);
  // What takes long before the first step; an empty text ends it.
  void SetActivity(std::string_view text, double fraction) ABSL_LOCKS_EXCLUDED(mutex_);
  // `driver_bytes`: as the device's driver counts; 0: nobody does.
  void SetMemory(int64_t arena_bytes, int64_t external_bytes, int64_t driver_bytes)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Something that people should know; the rank goes on. Any rank's is told.
  void Warn(std::string_view text) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same of what is in the log already.
  void TellWarning(std::string_view text) ABSL_LOCKS_EXCLUDED(mutex_);
  // Where a resumed rank goes on.
  void Resumed(int64_t step, int64_t tokens, std::string_view checkpoint)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // `more` stands behind the rest in the log.
  void Step(const v1::StepEvent& step, const v1::RankMetrics& metrics, bool log,
            std::string_view more = "") ABSL_LOCKS_EXCLUDED(mutex_);
  // The best evaluation so far, 0 when there was none; told with what comes next.
  void Best(int64_t step, double loss) ABSL_LOCKS_EXCLUDED(mutex_);
  void Eval(const v1::EvalEvent& eval, std::string_view more = "") ABSL_LOCKS_EXCLUDED(mutex_);
  void Checkpoint(const v1::CheckpointEvent& checkpoint) ABSL_LOCKS_EXCLUDED(mutex_);

  // The last report: sent, flushed, written to exit.pb. Only the first call counts.
  void End(const absl::Status& status, bool stopped_early, int exit_code)
      ABSL_LOCKS_EXCLUDED(end_mutex_, mutex_);

 private:
  void UpdateProgress(const v1::StepEvent& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LogStep(const v1::StepEvent& step, std::string_view more) const;
  // The report as it is now.
  v1::RankReport NewReport() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::JobEvent NewEvent() const;
  void KeepStep(const v1::JobEvent& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Tell(LinkNews news) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteExitFile() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const v1::RankConfig& config_;
  const Clock* const clock_;
  absl::Mutex end_mutex_;  // whoever comes second ends no earlier
  absl::Mutex mutex_ ABSL_ACQUIRED_AFTER(end_mutex_);
  LinkServer* link_ ABSL_GUARDED_BY(mutex_) = nullptr;
  v1::RankReport report_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  FlightWriter* flight_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int64_t metrics_told_ns_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace
