// Trains the programs of a job with all ranks on the calling thread.
//
// Memory of the device and of the host is full of ones before anything is put into it: what a
// program reads and has not written is not a number. Used only on the thread that created it.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/system/rank_state.h"

namespace terrace {

class Meeting;
class TurnsRank;

// Between two steps others may have theirs, so that jobs can be compared step by step.
class TurnsJob {
 public:
  // Borrows the data and the programs. UNIMPLEMENTED for programs with the caching allocator.
  static absl::StatusOr<std::unique_ptr<TurnsJob>> Create(const JobData& data,
                                                          const std::vector<v1::Program>& programs,
                                                          uint32_t seed);
  ~TurnsJob();

  // As RunInTurns.
  absl::Status Step();
  // Of all steps so far, by rank. REQUIRES: at least one; no other call after it.
  std::vector<RankResult> Finish();

 private:
  explicit TurnsJob(uint32_t seed);

  std::map<std::string, std::unique_ptr<Meeting>> meetings_;
  std::vector<std::unique_ptr<TurnsRank>> ranks_;
  std::mt19937 random_;
  int64_t steps_ = 0;
};

// By rank. As TurnsJob.
absl::StatusOr<std::vector<RankResult>> TrainInTurns(const JobData& data,
                                                     const std::vector<v1::Program>& programs,
                                                     int64_t steps, uint32_t seed);

}  // namespace terrace
