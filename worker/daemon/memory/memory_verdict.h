// What is said about a rank that ended without saying it itself: who held what, who killed it as
// far as that can be known, and what would have fit. A sentence for the job's message and a page
// for people.
//
// Pure and thread-safe: facts in, text out.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/v1/worker.pb.h"
#include "worker/flight/flight_recorder.h"

namespace terrace {

// Of the process, from outside.
struct ProcessSample {
  int64_t unix_ms = 0;
  ProcessBytes bytes;
  std::optional<int64_t> oom_kills;  // of its control group, ever
};

struct MemoryFacts {
  struct Stream {
    std::string name;
    std::string instruction;  // "812 adamw layer 3"; empty: at its end
  };
  struct Buffer {
    std::string name;
    int64_t bytes = 0;
    v1::Tier tier = v1::TIER_UNSPECIFIED;
    v1::BufferClass buffer_class = v1::BUFFER_CLASS_UNSPECIFIED;
    std::string made_by;  // "811 matmul layer 3"; empty: there since before the step
  };

  std::string job;
  uint32_t rank = 0;
  int64_t epoch = 0;
  std::string how;        // "killed by signal 9 (SIGKILL)"; empty: nobody saw it
  v1::RankMemory memory;  // at its end
  std::vector<Stream> streams;
  std::vector<Buffer> largest;
  std::vector<FlightEvent> events;     // oldest first
  std::vector<ProcessSample> samples;  // oldest first; a page with two addresses counts once
  // Of the control group, at its end.
  std::string cgroup;
  std::optional<int64_t> cgroup_limit_bytes;
  std::optional<int64_t> cgroup_used_bytes;
  std::optional<int64_t> oom_kills;
  bool oom_kill_is_logged = false;  // by the kernel, with this rank's process
  int64_t node_memory_bytes = 0;
  uint32_t local_ranks = 1;  // of this job on this node
  bool device_is_ram = true;
};

// Bytes of the process outside the arenas that each step adds, by the step ends recorded.
std::optional<int64_t> GrowthPerStep(const std::vector<FlightEvent>& events);

// Whether the kernel's OOM killer struck in the control group in the rank's last seconds, or has
// logged this rank.
bool OomKilled(const MemoryFacts& facts);

// "killed by signal 9 (SIGKILL) by the kernel's OOM killer (...) while ...: device ..., host ...".
std::string ShortVerdict(const MemoryFacts& facts);
std::string VerdictPage(const MemoryFacts& facts);

}  // namespace terrace
