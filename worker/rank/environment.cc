// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/environment.h"

#include <unistd.h>

#include <cstdlib>
#include <string>

namespace terrace {
namespace {

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
  if (share_cores) changed |= Set("OMP_WAIT_POLICY", "passive");
  changed |= Set("MALLOC_ARENA_MAX", "2");
  if (changed) ::execv("/proc/self/exe", argv);
}

}  // namespace terrace
