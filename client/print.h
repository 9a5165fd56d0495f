// How the client shows messages: protobuf's JSON with snake_case names, tables, durations, states;
// errors on standard error.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "client/options.h"
#include "google/protobuf/message.h"
#include "proto/v1/job.pb.h"

namespace terrace {

// One JSON object; `pretty` spreads it over lines. Fields with default values are written too.
std::string ToJson(const google::protobuf::Message& message, bool pretty);
// A quoted, escaped JSON string.
std::string JsonString(const std::string& text);
void PrintJson(const google::protobuf::Message& message);

// A file that a command wrote for its user.
struct WrittenFile {
  std::string path;
  size_t bytes = 0;
};
// "wrote PATH, N bytes" and `hint`, a line each; with -o json one object: {"files": [{"path",
// "bytes"}]}.
void PrintWritten(const GlobalOptions& global, const std::vector<WrittenFile>& files,
                  std::string_view hint = "");

// JSON has no NaN: a number that is none is null.
std::string JsonNumber(double value);

// "terrace: <message>" on standard error, with -o json also {"event": "error", "exit_code",
// "error": {"code", "message"}} on standard output. Returns the exit code.
int Fail(const GlobalOptions& global, const absl::Status& status);

std::string FormatDuration(double seconds);  // "4.1 ms", "0.41 s", "3 m 20 s", "2 h 05 m"
std::string FormatCount(double value);       // "950", "12.4k", "3.1M"
std::string FormatAge(int64_t then_unix_ms, int64_t now_unix_ms);
std::string_view StateName(v1::JobState state);  // "RUNNING"
std::string ReasonName(v1::Reason reason);       // "WAITING_FOR_DEVICES", "" for none
bool HasEnded(v1::JobState state);
// Whether a step was done since the job started: losses and speeds of those before are not known.
bool HasStepped(const v1::Progress& progress);
// Kind and name of a worker's devices: "cpu", "cuda: NVIDIA H100 80GB HBM3".
std::string DeviceText(const v1::Node& node);

// One line for `run -o json` and `watch -o json`: {"event": "step", "step": 3, ...}.
std::string EventLine(const v1::JobEvent& event);
// The same for people; empty for events that are not worth a line.
std::string EventText(const v1::JobEvent& event, int64_t steps);

// "58 m 00 s": what the steps that are left take, by the last step or the plan; empty: nothing is
// left, or known.
std::string LeftText(const v1::Job& job);
// "2h30m, 1 h 12 m used": empty: it has none.
std::string TimeLimitText(const v1::Job& job);

// The exit code that a job's final state means.
int ExitCodeOfJob(const v1::Job& job);

}  // namespace terrace
