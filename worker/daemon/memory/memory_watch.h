// One rank's memory as the daemon sees it from outside: the flight recorder, the program (which
// says what lives at the place that the recorder names), samples of the process and its control
// group. It costs the rank nothing and goes on after the rank's death.
//
// Thread-compatible; used only on the daemon's loop.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/memory_cgroup.h"
#include "proto/report/live_memory.h"
#include "proto/v1/worker.pb.h"
#include "worker/daemon/memory/hot_layers.h"
#include "worker/daemon/memory/memory_verdict.h"
#include "worker/flight/flight_recorder.h"

namespace terrace {

// Between two samples: while what the process holds moves by kProcessMovesBytes, and where not.
inline constexpr int64_t kProcessSampleMs = 250;
inline constexpr int64_t kSteadyProcessSampleMs = 1000;
inline constexpr int64_t kProcessMovesBytes = 1 << 20;
// Older ones go, and the oldest of so many (of clocks that are set back). An OOM kill counts as the
// cause of a death when it came within the samples kept.
inline constexpr int64_t kProcessSamplesKeptMs = 16'000;
inline constexpr size_t kProcessSamplesKept = 64;
inline constexpr size_t kLargestBuffersShown = 12;

// A program and what can be asked of it.
struct WatchedProgram {
  v1::Program program;
  std::optional<LiveMemory> live;
};

// Programs of ranks by their hash. shared_ptr: all ranks of a stage watch one, and the last of them
// frees it.
class WatchedPrograms {
 public:
  // Null when the file is no program.
  std::shared_ptr<const WatchedProgram> Get(const v1::RankConfig& config);

 private:
  std::map<std::string, std::weak_ptr<const WatchedProgram>> programs_;
};

class MemoryWatch {
 public:
  // What the node has, for reports. `device` of one device.
  struct Capacity {
    int64_t device_bytes = 0;
    int64_t host_bytes = 0;
  };
  // Borrows all. `pid` 0: it is dead already.
  MemoryWatch(const v1::RankConfig* config, int64_t pid, const Capacity& capacity,
              WatchedPrograms* programs, const Clock* clock);

  // Takes a sample where one is due or nearly so. How long the next may wait; infinite: the process
  // was dead from the start.
  absl::Duration Sample();
  // What the rank holds now; `metrics` are its latest own.
  v1::RankMemory Report(const v1::RankMetrics& metrics);
  // By its program; empty until there is one.
  const std::vector<HotLayer>& HotLayers();
  // For the verdict on a rank that has ended.
  MemoryFacts Facts(const v1::RankMetrics& metrics, const std::string& how);

 private:
  void AddSample(int64_t now_ms);
  void Open();
  void AddTiers(const FlightState& state, const v1::RankMetrics& metrics,
                v1::RankMemory* out) const;
  void AddAllocator(const ProgramPosition& position, const v1::RankMetrics& metrics,
                    v1::RankMemory* out);
  void AddSamples(const std::optional<FlightState>& state, MemoryFacts* facts) const;
  int64_t CapacityOf(v1::Tier tier) const;
  int64_t ExternalBytes(const FlightState& state) const;
  std::optional<FlightState> State() const;

  const v1::RankConfig* const config_;
  const int64_t pid_;
  const Capacity capacity_;
  WatchedPrograms* const programs_;
  const Clock* const clock_;
  const ProcessMemory process_;
  std::optional<MemoryCgroup> cgroup_;
  std::optional<FlightReader> flight_;
  std::shared_ptr<const WatchedProgram> program_;
  std::optional<std::vector<HotLayer>> hot_layers_;  // of the program
  int64_t step_peak_bytes_ = -1;                     // of the program; -1: not worked out yet
  std::deque<ProcessSample> samples_;
  int64_t sample_ms_ = kProcessSampleMs;  // until the next
  std::optional<int64_t> cgroup_used_bytes_;
};

}  // namespace terrace
