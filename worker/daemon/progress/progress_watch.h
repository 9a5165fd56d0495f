// Where one rank stands and for how long, as its daemon sees it from outside: the flight recorder,
// the program that says what stands there, and what the kernel says of the process. It costs the
// rank nothing, and a rank that is stopped is seen as well as one that runs.
//
// Time counts only as far as somebody looked: a daemon that was late, as on a machine that stood
// still, does not take its own absence for a rank's.
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
#include <utility>

#include "absl/time/time.h"
#include "base/clock.h"
#include "proto/v1/worker.pb.h"
#include "worker/daemon/memory/memory_watch.h"
#include "worker/daemon/progress/process_look.h"
#include "worker/flight/flight_recorder.h"

namespace terrace {

inline constexpr int64_t kProgressSampleMs = 1000;
// One that has stood for less is on its way: only how long is told.
inline constexpr int64_t kPlaceToldMs = 2000;
// Of files and connections, between two samples: then it works, as on a checkpoint.
inline constexpr int64_t kMovedBytesMin = 64 << 10;
inline constexpr size_t kGroupPlacesMax = 64;
// What ratios are over: so many steps, within these bounds.
inline constexpr double kStepsInWindow = 8;
inline constexpr int64_t kRatioWindowMs = 10'000;
inline constexpr int64_t kRatioWindowMsMax = 3'600'000;

class ProgressWatch {
 public:
  // Borrows all.
  ProgressWatch(const v1::RankConfig* config, ProcessReader process, WatchedPrograms* programs,
                const Clock* clock);

  // Looks where it is due or nearly so. How long the next look may wait. `metrics` are the rank's
  // latest own.
  absl::Duration Sample(const v1::RankMetrics& metrics);
  // As of the last look.
  const v1::RankPlace& place() const { return place_; }
  // For people: all streams and threads.
  std::string Page();

 private:
  struct Totals {
    int64_t ms = 0;
    double computing = 0;
    double waiting = 0;
  };
  // The group whose exchanges a stream has; empty: another kind of stream.
  const std::string& GroupOf(int sequence, int stream);
  std::string FindGroup(const v1::Instruction& instruction) const;
  void Open();
  void Look(int64_t elapsed_ms);
  void AddPlaces(const FlightState& state);
  void AddRatios(int64_t now_ms, const v1::RankMetrics& metrics);

  const v1::RankConfig* const config_;
  const ProcessReader process_;
  WatchedPrograms* const programs_;
  const Clock* const clock_;
  std::optional<FlightReader> flight_;
  std::shared_ptr<const WatchedProgram> program_;
  std::map<std::pair<int, int>, std::string> groups_;  // by sequence and stream
  v1::RankPlace place_;
  int64_t looked_ms_ = 0;  // 0: not yet
  FlightState state_;      // at the last look
  ProcessReader::Counters counters_;
  std::deque<Totals> totals_;  // of the window
};

}  // namespace terrace
