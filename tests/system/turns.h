// Executes a sequence of all ranks of a job on the calling thread: the streams take turns, each for
// a few instructions, in an order that a seed draws among all those that the waits of the programs
// and the calls between ranks allow. What threads on a few cores rarely do is as likely here as
// what they always do: without a wait that it needs, a program gives other numbers.
//
// The ranks' groups are Members (meeting.h). Used only on one thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <random>
#include <vector>

#include "absl/status/status.h"
#include "worker/vm/prepared_program.h"
#include "worker/vm/streams.h"

namespace terrace {

struct TurnRank {
  const PreparedSequence* sequence = nullptr;  // without a launcher
  SequenceIo* io = nullptr;
  StateFence* fence = nullptr;
};

// What the first failing instruction says. ABORTED, with what each rank waits for, when nobody can
// go on.
absl::Status RunInTurns(const std::vector<TurnRank>& ranks, std::mt19937* random);

}  // namespace terrace
