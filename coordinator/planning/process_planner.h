// Plans in processes of their own, with limits of time and memory: what a plan takes, or does to
// its process, is none of the coordinator's. A process that was quick and holds little is asked
// again, since starting one takes longer than to read a spec; all others end, and their memory goes
// back to the system.
//
// Some may work at a time, in two lanes. All begin in the quick one, the smallest models first, and
// leave it after kQuickTime: for the slow lane while that has room, else they end and begin again
// there when it has, if others wait. So a small plan waits for no large one longer than that.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/planning/planner.h"
#include "proto/job_roots.h"

namespace terrace {

class PlannerProcess;

inline constexpr int kQuickPlans = 2;  // at a time
inline constexpr int kSlowPlans = 2;
inline constexpr absl::Duration kQuickTime = absl::Seconds(1);
// That a process may hold and be asked again, and how often.
inline constexpr int64_t kIdleBytesMax = int64_t{64} << 20;
inline constexpr int kAskedMax = 1000;
// Whoever has waited so long comes before smaller ones.
inline constexpr absl::Duration kPatience = absl::Seconds(30);

// Of the memory of the machine, or of the control group that limits this process, for each of the
// plans at a time.
int64_t PlanShare(int64_t machine_bytes, std::optional<int64_t> group_bytes);

class ProcessPlanner final : public Planner {
 public:
  struct Options {
    std::string program = "/proc/self/exe";
    absl::Duration time = absl::Minutes(5);  // of one plan, from its start
    int64_t memory_bytes = 0;                // of one plan; 0: PlanShare
    JobRoots roots;                          // of paths in specs
  };

  explicit ProcessPlanner(const Options& options);
  ~ProcessPlanner() override;

  void Start(Work work) override;
  void Stop() override;

 private:
  enum class Lane { kQuick, kSlow };
  struct Task {
    Work work;
    absl::Time since;  // when it was asked for
  };
  struct Turn {
    Task task;
    Lane lane = Lane::kQuick;
    absl::Time begun;
    bool again = false;  // ended to begin again in the slow lane
  };

  bool HasTurn() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Turn TakeTurn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes turns until the planner stops. The body of a thread.
  void Run();
  // `idle` is the thread's process between turns, where it has one.
  struct Idle {
    std::unique_ptr<PlannerProcess> process;
    int asked = 0;
  };
  absl::StatusOr<v1::PlannerAnswer> Do(Turn& turn, Idle& idle);
  // Whether the turn may go on.
  absl::Status Watch(Turn& turn, int64_t held_bytes, const PlannerProcess& process);
  void End(Turn turn, absl::StatusOr<v1::PlannerAnswer> answer);

  const Options options_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Task> quick_ ABSL_GUARDED_BY(mutex_);  // waiting
  std::vector<Task> slow_ ABSL_GUARDED_BY(mutex_);   // waiting, by age
  int quick_running_ ABSL_GUARDED_BY(mutex_) = 0;
  int slow_running_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::thread> threads_;
};

}  // namespace terrace
