// The course of a job, written where people log their runs: a CSV table, TensorBoard's event files,
// an offline run of Weights & Biases.
//
// A log that can no longer be written (a full disk) is given up with one warning; the run goes on.
// Not thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/v1/job.pb.h"

namespace terrace {

struct RunLogOptions {
  std::string csv;          // a file; empty: none
  std::string tensorboard;  // a folder, as `tensorboard --logdir` takes it
  std::string wandb;        // a folder that gets wandb/offline-run-..., for `wandb sync`

  bool any() const { return !csv.empty() || !tensorboard.empty() || !wandb.empty(); }
};

class RunLog {
 public:
  virtual ~RunLog() = default;
  // Events in order; those without a number are ignored.
  virtual absl::Status Add(const v1::JobEvent& event) = 0;
  // The job has ended, or is not watched any longer.
  virtual absl::Status Finish(const v1::Job& job) = 0;
};

// The file may exist: rows are appended for what is newer than its last row, so that a job that is
// watched again is not written twice. INVALID_ARGUMENT when it is not a table of ours.
absl::StatusOr<std::unique_ptr<RunLog>> OpenCsv(const std::string& path);
// A new event file in the folder; TensorBoard reads all of a folder as one run.
absl::StatusOr<std::unique_ptr<RunLog>> OpenTensorBoard(const std::string& folder,
                                                        const v1::Job& job);
// A new run in the folder, with the job's spec as its config.
absl::StatusOr<std::unique_ptr<RunLog>> OpenWandb(const std::string& folder, const v1::Job& job);

class RunLogs {
 public:
  // Errors name the option: "--csv: ...".
  static absl::StatusOr<RunLogs> Open(const RunLogOptions& options, const v1::Job& job);

  // Tries to write where Open() would, before anything is begun; makes the files and folders.
  static absl::Status Check(const RunLogOptions& options);

  void Add(const v1::JobEvent& event);
  void Finish(const v1::Job& job);

 private:
  struct Named {
    std::string option;
    std::unique_ptr<RunLog> log;
  };
  template <typename Write>
  void ForEach(Write write);

  std::vector<Named> logs_;
};

}  // namespace terrace
