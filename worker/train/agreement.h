// All ranks take the same decisions at the same step: before it acts, each tells what it would do,
// and all learn what any of them wants. One tiny sum a step.
//
// Used only on the trainer's thread. The group is one of its own, of all ranks of the job.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"

namespace terrace {

struct Votes {
  bool stop = false;    // somebody was asked to stop
  bool failed = false;  // somebody cannot go on (its checkpoint failed): it says why itself
};

class Agreement {
 public:
  explicit Agreement(Communicator* all_ranks) : group_(all_ranks) {}

  // What any rank wishes. UNAVAILABLE when a peer is lost.
  absl::StatusOr<Votes> Exchange(Votes own);
  // Whether any rank says so.
  absl::StatusOr<bool> Any(bool own);
  // The same of each of several questions, of which all ranks ask equally many.
  absl::StatusOr<std::vector<bool>> AnyOfEach(const std::vector<bool>& own);
  // Rank 0's value.
  absl::StatusOr<int64_t> FromRankZero(int64_t own);

 private:
  Communicator* const group_;
};

}  // namespace terrace
