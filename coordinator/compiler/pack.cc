// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <optional>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/compiler/occupancy.h"

namespace terrace {
namespace {

int64_t AlignUp(int64_t bytes) {
  return (bytes + kPackAlignment - 1) / kPackAlignment * kPackAlignment;
}

// A buffer in the packer's own units: aligned bytes, and time as slots. A slot is a moment between
// a birth and the next death: there are no others at which more is alive.
struct Item {
  int64_t bytes = 0;
  int begin = 0;
  int end = 0;
  int life() const { return end - begin; }
};

struct Problem {
  std::vector<Item> items;
  int slots = 0;
  int64_t lower_bound_bytes = 0;
};

absl::Status CheckBuffers(absl::Span<const PackBuffer> buffers) {
  for (const PackBuffer& buffer : buffers) {
    if (buffer.bytes < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("buffer '", buffer.name, "': ", buffer.bytes, " bytes, must be at least 1"));
    }
    if (buffer.begin >= buffer.end) {
      return absl::InvalidArgumentError(absl::StrCat("buffer '", buffer.name, "': life [",
                                                     buffer.begin, ", ", buffer.end,
                                                     ") must end after it begins"));
    }
  }
  return absl::OkStatus();
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

Problem BuildProblem(absl::Span<const PackBuffer> buffers) {
  Problem problem;
  problem.items.resize(buffers.size());
  std::vector<Event> events;
  for (int i = 0; i < static_cast<int>(buffers.size()); ++i) {
    problem.items[i].bytes = AlignUp(buffers[i].bytes);
    events.push_back({buffers[i].begin, true, i});
    events.push_back({buffers[i].end, false, i});
  }
  std::sort(events.begin(), events.end());
  int64_t alive_bytes = 0;
  bool slot_open = false;  // a birth since the last death: the slot has begun
  for (const Event& event : events) {
    Item& item = problem.items[event.item];
    if (event.birth) {
      if (!slot_open) ++problem.slots;
      slot_open = true;
      item.begin = problem.slots - 1;
      alive_bytes += item.bytes;
      problem.lower_bound_bytes = std::max(problem.lower_bound_bytes, alive_bytes);
    } else {
      slot_open = false;
      item.end = problem.slots;
      alive_bytes -= item.bytes;
    }
  }
  return problem;
}

struct Placement {
  std::vector<int64_t> offsets;
  int64_t arena_bytes = 0;
};

Placement Place(const Problem& problem, const std::vector<int>& order) {
  Placement placement;
  placement.offsets.resize(problem.items.size());
  Occupancy occupancy(problem.slots);
  for (int i : order) {
    const Item& item = problem.items[i];
    const int64_t offset = occupancy.FindLowest(item.begin, item.end, item.bytes);
    occupancy.Take(item.begin, item.end, offset, item.bytes);
    placement.offsets[i] = offset;
    placement.arena_bytes = std::max(placement.arena_bytes, offset + item.bytes);
  }
  return placement;
}

std::vector<int> BySize(const Problem& problem) {
  std::vector<int> order(problem.items.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return problem.items[a].bytes > problem.items[b].bytes; });
  return order;
}

}  // namespace

absl::StatusOr<Packing> Pack(absl::Span<const PackBuffer> buffers) {
  RETURN_IF_ERROR(CheckBuffers(buffers));
  const Problem problem = BuildProblem(buffers);
  const Placement best = Place(problem, BySize(problem));
  return Packing{.offsets = best.offsets,
                 .arena_bytes = best.arena_bytes,
                 .lower_bound_bytes = problem.lower_bound_bytes};
}

}  // namespace terrace
