// Exit codes of every Terrace program (docs/exit_codes.md), and which status gives which.
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"

namespace terrace {

enum class ExitCode : int {
  kOk = 0,
  kFailure = 1,        // the job or the request failed
  kUsage = 2,          // the command line is wrong
  kNotFound = 3,       // no such job, file or checkpoint
  kInvalidInput = 4,   // spec, config, data or file content is wrong
  kResources = 5,      // memory, disk or devices do not suffice
  kUnavailable = 6,    // the coordinator cannot be reached, an address is in use
  kCancelled = 7,      // the job was cancelled
  kInterrupted = 130,  // stopped by Ctrl-C
};

constexpr int ToInt(ExitCode code) { return static_cast<int>(code); }

inline ExitCode ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return ExitCode::kOk;
    case absl::StatusCode::kNotFound:
      return ExitCode::kNotFound;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kOutOfRange:
      return ExitCode::kInvalidInput;
    case absl::StatusCode::kResourceExhausted:
      return ExitCode::kResources;
    case absl::StatusCode::kUnavailable:
      return ExitCode::kUnavailable;
    case absl::StatusCode::kCancelled:
      return ExitCode::kCancelled;
    default:
      return ExitCode::kFailure;
  }
}

}  // namespace terrace
