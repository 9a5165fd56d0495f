// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack/problem.h"

#include <algorithm>
#include <tuple>

namespace terrace {
namespace {

int64_t AlignUp(int64_t bytes) {
  return (bytes + kPackAlignment - 1) / kPackAlignment * kPackAlignment;
}

// Births at one time come after deaths at that time, as lives are half open.
struct Event {
  int64_t time = 0;
  bool birth = false;
  int item = 0;
  bool operator<(const Event& other) const {
    return std::tie(time, birth, item) < std::tie(other.time, other.birth, other.item);
  }
};

// A buffer that lives all the time has one life.
std::vector<PackBuffer::Life> LivesOf(const PackBuffer& buffer) {
  if (!buffer.lives.empty()) return buffer.lives;
  return {{.begin = buffer.begin, .end = buffer.end}};
}

}  // namespace

PackProblem MakePackProblem(absl::Span<const PackBuffer> buffers) {
  PackProblem problem;
  problem.items.resize(buffers.size());
  std::vector<Event> events;
  events.reserve(2 * buffers.size());
  for (int i = 0; i < static_cast<int>(buffers.size()); ++i) {
    problem.items[i].bytes = AlignUp(buffers[i].bytes);
    problem.items[i].begin = -1;
    for (const PackBuffer::Life& life : LivesOf(buffers[i])) {
      events.push_back({life.begin, true, i});
      events.push_back({life.end, false, i});
    }
  }
  std::sort(events.begin(), events.end());
  int64_t alive_bytes = 0;
  bool slot_open = false;  // a birth since the last death: the slot has begun
  for (const Event& event : events) {
    PackItem& item = problem.items[event.item];
    if (event.birth) {
      if (!slot_open) ++problem.slots;
      slot_open = true;
      const int slot = problem.slots - 1;
      if (item.begin < 0) item.begin = slot;
      if (!buffers[event.item].lives.empty()) item.lives.push_back({.begin = slot});
      alive_bytes += item.bytes;
      problem.lower_bound_bytes = std::max(problem.lower_bound_bytes, alive_bytes);
    } else {
      slot_open = false;
      item.end = problem.slots;
      if (!item.lives.empty()) item.lives.back().end = problem.slots;
      alive_bytes -= item.bytes;
    }
  }
  return problem;
}

}  // namespace terrace
