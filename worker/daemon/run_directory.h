// The folder of one rank process, <state>/runs/<job>/<epoch>/<rank>/: what a restarted daemon needs
// to find it again.
//
//   config.pb  what the rank was told       pid        of its process
//   exit.pb    its last report, by itself   rank.log   its output
//   trace.json the timeline of its first steps, where the spec asks for one
//   link.sock  where it listens             forgotten  the coordinator knows its end: only the log
//   is of interest
//   ../host_memory, ../host_memory.lock  what the ranks of the job have taken of the node's memory
//   flight     what it held, while it runs and after (worker/flight/flight_recorder.h)
//   memory_verdict.txt  who held what when it died
//   hang.txt   where it stood when its job hung
//   ran_out.pb  it was asked to end because of its memory: the report that then counts
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/v1/worker.pb.h"
#include "worker/confine/rank_user.h"

namespace terrace {

inline constexpr size_t kForgottenRunsKept = 200;

// False for names that would leave the state folder.
bool IsSafeJobId(std::string_view job);

std::string RunDirectory(std::string_view state, const v1::RankConfig& config);
std::string LogPath(std::string_view run_directory);
std::string TracePath(std::string_view run_directory);
std::string SocketPath(std::string_view run_directory);
std::string ConfigPath(std::string_view run_directory);
std::string PidPath(std::string_view run_directory);
std::string VerdictPath(std::string_view run_directory);
std::string RanOutPath(std::string_view run_directory);
std::string HangPath(std::string_view run_directory);

// With what the rank is told and, where it has others beside it here, what they share. The folders
// above it stay the worker's.
absl::Status MakeRunDirectory(std::string_view state, const v1::RankConfig& config,
                              const RankFiles& files);
std::optional<v1::RankReport> ReadExitReport(std::string_view run_directory);
std::optional<v1::RankReport> ReadRanOut(std::string_view run_directory);
// The process of this run while it lives. The number alone is not trusted, it may be another
// process's by now: the run's folder must be on its command line.
std::optional<pid_t> FindProcess(std::string_view run_directory);
void MarkForgotten(std::string_view run_directory);
// "killed by signal 9: <last line of its log>".
std::string LastLogLine(std::string_view run_directory);

// The runs not forgotten. Removes the oldest forgotten ones beyond kForgottenRunsKept.
std::vector<v1::RankConfig> ScanRuns(std::string_view state);
// Of the newest epoch of the job on this node that has one. NOT_FOUND when there is none.
absl::StatusOr<std::string> FindLog(std::string_view state, std::string_view job, uint32_t rank);
// Of all epochs from that one on that have one, by epoch.
std::map<int64_t, std::string> LogsFrom(std::string_view state, std::string_view job, uint32_t rank,
                                        int64_t epoch);
absl::StatusOr<std::string> FindTrace(std::string_view state, std::string_view job, uint32_t rank);

}  // namespace terrace
