// A coordinator without its network, with two workers of one device and a job on each: what hostile
// messages meet. Nothing is planned; the clock stands still unless it is told to go on.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "coordinator/jobs/reconciler.h"
#include "coordinator/store/memory_store.h"
#include "tests/support/fake_clock.h"
#include "tests/support/fake_worker.h"

namespace terrace {

class SmallCluster final : public ControlPorts {
 public:
  SmallCluster();

  // A message of the worker "hostile"; its Register is taken as its stream's first message is.
  absl::Status HostileSays(const v1::WorkerMessage& message);
  // The other worker and its job go on as if nothing had happened; ends the process otherwise.
  void RequireVictimIsWell();
  // As passes come; `ms` is how far the clock has gone on.
  void Pass(int64_t ms);

  Reconciler& reconciler() { return *reconciler_; }
  const std::string& victims_job() const { return victims_job_; }
  const std::string& hostiles_job() const { return hostiles_job_; }

  // ControlPorts.
  void Send(std::string_view worker, const v1::CoordinatorMessage& message) override;
  void Plan(const v1::JobSpec&, const Budget&, std::weak_ptr<void>, PlanDone) override {}
  void Descend(const v1::JobSpec&, const Budget&, const v1::Plan&, std::weak_ptr<void>,
               DescendDone) override {}
  void EventsStored(std::string_view) override {}

 private:
  // On the only device that is free. The id of the job, which runs.
  std::string RunJob(FakeWorker* on);

  static constexpr uint64_t kVictim = 1, kHostile = 2;  // sessions

  FakeClock clock_;
  MemoryStore store_;
  FakeWorker victim_{"victim", 1}, hostile_{"hostile", 1};
  std::unique_ptr<Reconciler> reconciler_;
  std::string victims_job_, hostiles_job_;
};

}  // namespace terrace
