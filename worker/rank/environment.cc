// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/environment.h"

#include <unistd.h>

#include <cstdlib>
#include <string>

namespace terrace {
namespace {

// Rounds that a thread spins at a barrier before it sleeps: a few microseconds, about the time
// between two parallel loops. The default of a millisecond is no faster on an idle machine, and on
// a busy one five times slower: the thread that all wait for does not get the core.
constexpr char kSpinsAlone[] = "2000";

// Of rounds, where more threads than cores belong to teams: those of a stream that computes on the
// host count although they sleep while the others compute. By default the library then spins for
// 100 rounds, so that a rank with such a stream sleeps and wakes at every barrier of every stream;
// "active" is 1000, and never more than GOMP_SPINCOUNT.
constexpr char kSpinsOfManyTeams[] = "active";

// True when the variable had another value.
bool Set(const char* name, const std::string& value) {
  const char* old = std::getenv(name);
  if (old != nullptr && value == old) return false;
  ::setenv(name, value.c_str(), 1);
  return true;
}

}  // namespace

void RestartWithEnvironment(char** argv, int threads, bool share_cores) {
  bool changed = Set("OMP_NUM_THREADS", std::to_string(threads));
  changed |= Set("GOMP_SPINCOUNT", share_cores ? "0" : kSpinsAlone);
  changed |= Set("OMP_WAIT_POLICY", kSpinsOfManyTeams);
  changed |= Set("MALLOC_ARENA_MAX", "2");
  if (changed) ::execv("/proc/self/exe", argv);
}

}  // namespace terrace
