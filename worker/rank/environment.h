// Settings of libraries that are read from the environment before main: a program that needs them
// sets them and starts itself again, once.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace terrace {

// OpenMP with `threads` threads, which spin shortly while they wait, and not at all when they
// `share_cores` (several ranks on one machine: a spinning one takes the core from the one it waits
// for); two malloc arenas, for a small process. Returns at once in the second life, or when the
// program cannot be started again.
void RestartWithEnvironment(char** argv, int threads, bool share_cores);

}  // namespace terrace
