// A coordinator, its store, its clients and its workers in one thread, driven by one seed.
//
// Each step something happens: a client asks, time passes or jumps, a message arrives, late, twice
// or not at all, a rank or a machine dies, a disk fills up, the coordinator dies at a write. After
// each step what must always hold is checked; in the end all faults stop, and every job must end.
//
// Everything follows from the seed: the same seed is the same life, step for step.
// Used by one thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "coordinator/jobs/reconciler.h"
#include "tests/sim/crashing_store.h"
#include "tests/sim/sim_worker.h"

namespace terrace {

// A clock that stands still until it is moved, and whose date may jump.
class SimClock final : public Clock {
 public:
  int64_t UnixMillis() const override { return unix_ms_ + now_ns_ / 1'000'000; }
  int64_t MonotonicNanos() const override { return now_ns_; }
  void AdvanceMillis(int64_t ms) { now_ns_ += ms * 1'000'000; }
  void JumpMillis(int64_t ms) { unix_ms_ += ms; }

 private:
  int64_t now_ns_ = 1;
  int64_t unix_ms_ = 1'700'000'000'000;
};

inline constexpr int kSimWorkers = 3;
inline constexpr uint32_t kSimDevicesEach = 2;

class ControlSim final : public ControlPorts {
 public:
  struct Options {
    int steps = 60;
    bool tells = false;  // each step, on standard error
  };
  ControlSim(uint64_t seed, const Options& options);
  ~ControlSim() override;

  // What did not hold, with the step at which that was seen; empty: everything did.
  std::string Run();

  // How often something happened, so that a test can tell whether it did at all.
  struct Counts {
    int64_t submitted = 0, crashes = 0, power_losses = 0, started = 0, restarts = 0, succeeded = 0;
    int64_t resized = 0;    // gangs with more or fewer ranks than the one before
    int64_t preempted = 0;  // jobs that were asked to stop for another
    int64_t lost_messages = 0, doubled_messages = 0, stale_messages = 0;
    bool operator==(const Counts&) const = default;
  };
  const Counts& counts() const { return counts_; }

 private:
  // The stream of one worker. What is on its way when it breaks may yet arrive.
  struct Link {
    std::unique_ptr<SimWorker> worker;
    uint64_t session = 0;  // 0: none
    int64_t cut_until_ns = 0;
    int64_t heard_ns = 0;                                   // by this coordinator, which took it
    std::vector<std::pair<std::string, int64_t>> reported;  // jobs and epochs, then
    std::deque<v1::WorkerMessage> up;
    std::deque<v1::CoordinatorMessage> down;
    std::deque<std::pair<uint64_t, v1::WorkerMessage>> late;  // of sessions that are over
  };
  // The most that a client was told of a job.
  struct Known {
    int64_t epoch = 0;
    v1::JobState ended = v1::PENDING;  // PENDING: it has not
  };
  using RankKey = std::tuple<std::string, int64_t, uint32_t>;  // job, epoch, rank

  // ControlPorts.
  void Send(std::string_view worker, const v1::CoordinatorMessage& message) override;
  void Plan(const v1::JobSpec& spec, const Budget& budget, std::weak_ptr<void> wanted,
            PlanDone done) override;
  void Descend(const v1::JobSpec& spec, const Budget& budget, const v1::Plan& plan,
               std::weak_ptr<void> wanted, DescendDone done) override;
  void EventsStored(std::string_view) override {}

  int Below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  bool Chance(int percent) { return Below(100) < percent; }
  Link& AnyLink() { return links_[static_cast<size_t>(Below(static_cast<int>(links_.size())))]; }

  void Step();
  void Happen(int what);
  v1::JobSpec AnySpec();
  void Submit();
  void AskAboutAJob();
  void Drain(const std::string& worker);
  void PassTime();
  void Turn(Link& link);
  void Deliver(Link& link);
  void Disturb(Link& link);
  void HurtMachine(Link& link);
  void Connect(Link& link);
  void Disconnect(Link& link);
  void Deliver(Link& link, uint64_t session, const v1::WorkerMessage& message);
  void RunPlans();
  void Boot();
  void Crash();
  void Heal();
  void HealedRound();

  void NoteTold(const v1::Job& job);
  void ForgetLost();
  void CheckPlaced(const v1::Job& job);
  void CheckStart(std::string_view worker, const v1::RankConfig& config);
  void CheckAll();
  void CheckStored(const std::vector<v1::Job>& jobs);
  void CheckDevices(const std::vector<v1::Job>& jobs);
  void CheckWorkers();
  void Fail(const std::string& what);
  void Tell(const std::string& what);

  const Options options_;
  std::mt19937_64 random_;
  SimClock clock_;
  CrashingStore store_;
  std::vector<Link> links_;
  std::map<std::string, int64_t> checkpoints_;  // newest step, by job
  std::vector<std::string> ids_;                // that clients were told
  std::map<std::string, Known> told_;
  std::set<std::string> drained_;                                // workers, as an operator was told
  std::map<RankKey, std::pair<std::string, uint32_t>> started_;  // worker and device
  std::map<std::string, int> sizes_;                             // of the last gang, by job
  std::deque<std::function<void()>> plans_;
  std::unique_ptr<Reconciler> reconciler_;
  uint64_t last_session_ = 0;
  int step_ = 0;
  bool loses_power_ = false;  // with the next crash
  int64_t checked_ = -1;      // changes of the store
  std::string failure_;
  Counts counts_;
};

}  // namespace terrace
