// What the bandwidth benchmarks share: memory on huge pages, and a table of works that take turns.
//
// Every round runs each work once, so that a machine whose speed drifts slows all of them alike;
// reported are the median of each and of its ratio to the best of the first works, the references,
// in the same round.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace terrace::bench {

// On huge pages where there are any, touched; starts on a huge page like a rank's arena.
// Thread-compatible.
class Memory {
 public:
  explicit Memory(int64_t bytes) : span_(std::max<int64_t>(bytes, 1) + kHugePageBytes) {
    map_ = mmap(nullptr, span_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map_ == MAP_FAILED) std::abort();
    const auto address = reinterpret_cast<uintptr_t>(map_);
    data_ = static_cast<std::byte*>(map_) + (-address & (kHugePageBytes - 1));
    madvise(data_, bytes, MADV_HUGEPAGE);
    std::memset(data_, 0, bytes);
  }
  ~Memory() { munmap(map_, span_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* data() const { return data_; }

 private:
  static constexpr int64_t kHugePageBytes = 2 << 20;

  int64_t span_;
  void* map_;
  std::byte* data_;
};

struct Work {
  std::string name;
  int64_t bytes = 0;
  int64_t items = 0;  // parameters of updates; 0 elsewhere
  std::function<void()> run;
};

inline double SecondsOf(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

inline double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Gigabytes a second of one run, or of several where one would be too short to time. One before
// them is not timed, as in STREAM: it would also tell what the work before it left in whose cache.
inline double Rate(const Work& work, clockid_t clock) {
  constexpr double kShortest = 2e-3;
  work.run();
  const double start = SecondsOf(clock);
  int runs = 0;
  double seconds = 0;
  do {
    work.run();
    ++runs;
    seconds = SecondsOf(clock) - start;
  } while (seconds < kShortest);
  return static_cast<double>(work.bytes) * runs / seconds / 1e9;
}

// Prints one line a work. CLOCK_THREAD_CPUTIME_ID leaves out what other programs take of a shared
// core, and is right where one thread does all the work.
inline void Report(const std::vector<Work>& works, int references, int rounds, clockid_t clock) {
  std::vector<std::vector<double>> rates(works.size()), shares(works.size());
  for (const Work& work : works) work.run();
  for (int round = 0; round < rounds; ++round) {
    double reference = 0;
    for (size_t i = 0; i < works.size(); ++i) {
      rates[i].push_back(Rate(works[i], clock));
      if (static_cast<int>(i) < references) reference = std::max(reference, rates[i].back());
    }
    for (size_t i = 0; i < works.size(); ++i) shares[i].push_back(rates[i].back() / reference);
  }
  std::printf("| %-28s | GB/s | of triad | best GB/s | G param/s |\n|---|---|---|---|---|\n", "op");
  for (size_t i = 0; i < works.size(); ++i) {
    const double rate = Median(rates[i]);
    std::printf("| %-28s | %.1f | %.2f | %.1f | ", works[i].name.c_str(), rate, Median(shares[i]),
                *std::max_element(rates[i].begin(), rates[i].end()));
    if (works[i].items > 0) {
      std::printf("%.2f",
                  rate * static_cast<double>(works[i].items) / static_cast<double>(works[i].bytes));
    }
    std::printf(" |\n");
  }
}

}  // namespace terrace::bench
