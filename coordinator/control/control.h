// The coordinator without its network: the control loop, and who is to be told what. Planning is
// somebody else's (planning/planner.h).
//
// The services (job_service, worker_service) are thin: they turn calls into closures on the loop
// and answers into streams. Everything below "on the loop" is used only on the loop's thread; the
// rest is thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/loop.h"
#include "coordinator/jobs/reconciler.h"
#include "coordinator/planning/planner.h"
#include "coordinator/store/store.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/worker.pb.h"

namespace terrace {

inline constexpr size_t kWatchersMax = 1024;
inline constexpr size_t kLogReadersMax = 256;

// What a planner answered, as it is stored.
absl::StatusOr<PlannedJob> PlannedOf(absl::StatusOr<v1::PlannerAnswer> answer);

// The open stream of one worker.
class WorkerConnection {
 public:
  virtual ~WorkerConnection() = default;
  virtual void Send(const v1::CoordinatorMessage& message) = 0;
};

class Control final : public ControlPorts {
 public:
  // All are borrowed and must outlive the Control.
  Control(const Reconciler::Timing& timing, Store& store, const Clock& clock, Planner& planner,
          const QueueOptions& queue = {});
  ~Control() override;

  // Reads the jobs back and starts the loop.
  absl::Status Start();
  // Before its network ends: plans under way end with an error, and from now on nothing is decided
  // about jobs, which go on.
  void Close();
  void Stop();

  // As published after a pass, about once a second; null before the first. From any thread, without
  // waiting for the loop. shared_ptr: who serves it goes on with it while the next is published.
  std::shared_ptr<const ControlStats> PublishedStats() const ABSL_LOCKS_EXCLUDED(stats_mutex_);

  Loop& loop() { return loop_; }
  Planner& planner() { return planner_; }

  // ---- on the loop ----
  Reconciler& reconciler() { return reconciler_; }
  Store& store() { return store_; }

  // The newest connection of a name takes its place. The result is the session for the reconciler.
  uint64_t NewSession() { return ++last_id_; }
  void AttachWorker(const std::string& name, uint64_t session, WorkerConnection* connection);
  void DetachWorker(const std::string& name, uint64_t session);

  // The job is stored after the calls that wait for the loop now, in one write with others of them;
  // then `done` is called.
  void SubmitSoon(SubmittedJob job, std::function<void(absl::StatusOr<v1::Job>)> done);

  // `closure` runs after the first pass that begins so much later; passes are at most 1.25 s apart.
  void CallAfter(absl::Duration delay, std::function<void()> closure);

  // `notify` is called whenever the job has new events. RESOURCE_EXHAUSTED beyond kWatchersMax.
  absl::StatusOr<uint64_t> AddWatcher(std::string_view job, std::function<void()> notify);
  void RemoveWatcher(uint64_t id);

  // The log of a rank, read by its worker: `sink` gets every chunk; the last has `end` or an error.
  using LogSink = std::function<void(const v1::LogText&)>;
  absl::StatusOr<uint64_t> ReadLog(const v1::LogsRequest& request, LogSink sink);
  void StopLog(uint64_t id);
  // Ignored unless it was asked of that worker.
  void LogArrived(std::string_view worker, const v1::LogText& text);

  // ControlPorts.
  void Send(std::string_view worker, const v1::CoordinatorMessage& message) override;
  void Plan(const v1::JobSpec& spec, const Budget& budget, std::weak_ptr<void> wanted,
            PlanDone done) override;
  void Descend(const v1::JobSpec& spec, const Budget& budget, const v1::Plan& plan,
               std::weak_ptr<void> wanted, DescendDone done) override;
  void EventsStored(std::string_view job) override;

 private:
  struct Attached {
    uint64_t session = 0;
    WorkerConnection* connection = nullptr;
  };
  struct Watcher {
    std::string job;
    std::function<void()> notify;
  };
  struct LogReader {
    std::string worker;
    v1::ReadLog request;
    LogSink sink;
  };

  absl::Duration Pass();
  struct Stored {
    std::vector<absl::StatusOr<std::string>> ids;
    std::vector<std::function<void(absl::StatusOr<v1::Job>)>> done;
  };
  Stored StoreSubmitted();
  void Answer(const Stored& stored);
  void PublishStats() ABSL_LOCKS_EXCLUDED(stats_mutex_);

  const Clock& clock_;
  Store& store_;
  Planner& planner_;
  Reconciler reconciler_;
  int64_t passed_ns_ = 0;                                 // when the last pass ended; 0: none has
  std::multimap<int64_t, std::function<void()>> timers_;  // by the time they are due
  std::vector<SubmittedJob> submitted_;                   // that are not stored yet
  std::vector<std::function<void(absl::StatusOr<v1::Job>)>> submitted_done_;  // of these
  uint64_t last_id_ = 0;
  std::map<std::string, Attached, std::less<>> workers_;
  std::map<uint64_t, Watcher> watchers_;
  std::map<uint64_t, LogReader> log_readers_;
  mutable absl::Mutex stats_mutex_;  // held for the copy of a pointer
  std::shared_ptr<const ControlStats> stats_ ABSL_GUARDED_BY(stats_mutex_);
  int64_t stats_ns_ = 0;  // when they were published
  Loop loop_;
};

}  // namespace terrace
