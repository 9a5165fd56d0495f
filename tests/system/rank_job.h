// terrace-rank as a process, for tests: a tiny job in a folder of its own, started, waited for and
// read from outside.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "proto/v1/job.pb.h"
#include "proto/v1/program.pb.h"
#include "proto/v1/worker.pb.h"

namespace terrace {

// All bytes of a file; empty where there is none.
std::string ReadAll(const std::filesystem::path& path);

// True when the condition came to hold within `limit`.
bool WaitUntil(const std::function<bool()>& condition,
               std::chrono::seconds limit = std::chrono::seconds(30));

struct RankJobOptions {
  int64_t steps = 60;
  int64_t checkpoint_every = 10;
  uint32_t ranks = 1;  // data-parallel ones
  uint32_t stages = 1;
  double lr = 1e-3;
  double link_bytes_per_second = 0;  // 0: not slowed
};

// Writes its data, its programs and one configuration a rank; removes its folder in the end.
class RankJob {
 public:
  RankJob(const std::string& name, const RankJobOptions& options);
  ~RankJob();

  v1::JobSpec& spec() { return spec_; }
  const v1::Program& program() const { return programs_.front(); }
  std::filesystem::path run_directory(uint32_t rank) const;
  std::filesystem::path checkpoint(int64_t step) const;
  std::filesystem::path folder() const { return folder_; }
  std::string log(uint32_t rank) const;

  // Returns the process id. An empty `sha256` is that of the rank's program.
  pid_t Start(uint32_t rank = 0, bool daemon = false, const std::string& sha256 = "");
  // The exit status, or minus the signal that ended it.
  static int WaitForExit(pid_t pid);
  int Run() { return WaitForExit(Start()); }
  // The last report, which the rank leaves in its folder.
  v1::RankReport Outcome(uint32_t rank = 0) const;

 private:
  void WriteTokens() const;
  void FillSpec(const RankJobOptions& options);
  void Compile(const RankJobOptions& options);
  std::filesystem::path ProgramPath(size_t stage) const;

  const std::filesystem::path folder_;
  const double link_bytes_per_second_;
  v1::JobSpec spec_;
  std::vector<v1::Program> programs_;  // by stage
};

// Fails the test unless both checkpoints hold the same bytes of weights and optimizer state.
void ExpectSameState(const std::filesystem::path& a, const std::filesystem::path& b);

}  // namespace terrace
