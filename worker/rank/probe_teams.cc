// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/probe_teams.h"

#include <omp.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <semaphore>
#include <thread>
#include <vector>

namespace terrace {
namespace {

constexpr int kLoops = 40;
constexpr std::chrono::microseconds kPause(500);  // several times what is expected
// Of the processor, by a system call that ends in a switch; as much again is not told from it.
constexpr double kGoingToSleepSeconds = 3e-6;

double SecondsOf(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Of one thread in one loop.
struct Part {
  bool taken = false;  // else the library gave fewer threads
  clockid_t clock = 0;
  double end_seconds = 0;  // by that clock, its processor time
};

double AwakeSeconds(int threads) {
  std::vector<double> seconds;
  for (int loop = 0; loop < kLoops; ++loop) {
    std::vector<Part> parts(threads);
#pragma omp parallel num_threads(threads)
    {
      Part& part = parts[omp_get_thread_num()];
      part.taken = pthread_getcpuclockid(pthread_self(), &part.clock) == 0;
      part.end_seconds = SecondsOf(part.clock);
    }
    std::this_thread::sleep_for(kPause);
    for (int i = 1; i < threads; ++i) {  // the first is this thread
      if (parts[i].taken) seconds.push_back(SecondsOf(parts[i].clock) - parts[i].end_seconds);
    }
  }
  if (seconds.empty()) return 0;
  const auto tenth = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 10);
  std::nth_element(seconds.begin(), tenth, seconds.end());
  return *tenth < 2 * kGoingToSleepSeconds ? 0 : *tenth - kGoingToSleepSeconds;
}

}  // namespace

TeamSpins MeasureTeamSpins(int threads) {
  TeamSpins spins = {.one_seconds = AwakeSeconds(threads)};
  std::binary_semaphore has_team(0), ending(0);
  std::thread other([&] {
#pragma omp parallel num_threads(threads)
    omp_get_thread_num();
    has_team.release();
    ending.acquire();
  });
  has_team.acquire();
  spins.two_seconds = AwakeSeconds(threads);
  ending.release();
  other.join();
  return spins;
}

}  // namespace terrace
