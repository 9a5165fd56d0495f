// How long the threads of a team wait awake for its next loop before they sleep (environment.cc
// tells the OpenMP library how many rounds, but not what a round takes on this processor).
//
// It is the processor time of a thread between its part of a loop and long after, when it sleeps.
// Other programs lengthen that time and next to nothing shortens it, so that the fastest tenth
// counts, on a busy machine too. A twentieth of a second.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace terrace {

struct TeamSpins {
  double one_seconds = 0;  // the only team of its process
  double two_seconds = 0;  // beside another team, which sleeps
};

// Of teams of so many threads, with the settings of this process; 0 where they sleep at once. What
// lasts longer than 500 us counts as that. REQUIRES: threads > 1. Starts threads and ends them.
TeamSpins MeasureTeamSpins(int threads);

}  // namespace terrace
