// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <tuple>
#include <utility>

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

// The orders of the portfolio. A class is a power of two: buffers of about the same size or life go
// in by time, so that they dovetail. docs/memory.md says which order wins where.
enum class Order {
  kSize,               // largest first
  kSizeClassStart,     // by size class, then birth
  kSizeClassEnd,       // by size class, then death, last first
  kLifeClassStart,     // by life class, longest first, then birth
  kLifeClassEnd,       // by life class, then death, last first
  kArea,               // largest bytes x life first
  kLongThenSize,       // the longest `long_percent` % by birth, the rest by size
  kLongThenSizeClass,  // the same, the rest by size class, then birth
};

struct Strategy {
  Order order = Order::kSize;
  int long_percent = 0;
};

// The likeliest winners first.
constexpr Strategy kPortfolio[] = {
    {Order::kSizeClassStart},
    {Order::kSize},
    {Order::kSizeClassEnd},
    {Order::kLongThenSize, 2},
    {Order::kLongThenSizeClass, 5},
    {Order::kLongThenSize, 10},
    {Order::kLongThenSizeClass, 10},
    {Order::kLongThenSize, 20},
    {Order::kLongThenSizeClass, 40},
    {Order::kLongThenSize, 60},
    {Order::kLifeClassEnd},
    {Order::kLifeClassStart},
    {Order::kArea},
};

// One part in this many over the lower bound is good enough to stop: 0.5 %.
constexpr int64_t kGoodEnoughPart = 200;

using Key = std::array<int64_t, 3>;

int64_t Class(int64_t value) { return std::bit_width(static_cast<uint64_t>(value)); }

// Items of smaller keys go first, of equal keys by their index. Integers only: the same on every
// machine.
Key KeyOf(const Item& item, Order order, int long_life) {
  const bool is_long = item.life() >= long_life;
  switch (order) {
    case Order::kSize:
      return {-item.bytes, item.begin, -item.end};
    case Order::kSizeClassStart:
      return {-Class(item.bytes), item.begin, -item.bytes};
    case Order::kSizeClassEnd:
      return {-Class(item.bytes), -item.end, -item.bytes};
    case Order::kLifeClassStart:
      return {-Class(item.life()), item.begin, -item.bytes};
    case Order::kLifeClassEnd:
      return {-Class(item.life()), -item.end, -item.bytes};
    case Order::kArea:
      return {-(item.bytes / kPackAlignment) * item.life(), item.begin, 0};
    case Order::kLongThenSize:
      return is_long ? Key{0, item.begin, -item.bytes} : Key{1, -item.bytes, item.begin};
    case Order::kLongThenSizeClass:
      return is_long ? Key{-64, item.begin, -item.bytes}
                     : Key{-Class(item.bytes), item.begin, -item.bytes};
  }
  return {};
}

// The life that `percent` % of the items reach.
int LongLife(const std::vector<Item>& items, int percent) {
  std::vector<int> lives;
  for (const Item& item : items) lives.push_back(item.life());
  const auto nth = lives.begin() + lives.size() * percent / 100;
  std::nth_element(lives.begin(), nth, lives.end(), std::greater<>());
  return *nth;
}

std::vector<int> MakeOrder(const Problem& problem, const Strategy& strategy) {
  const int long_life = LongLife(problem.items, strategy.long_percent);
  std::vector<std::pair<Key, int>> keyed;
  for (int i = 0; i < static_cast<int>(problem.items.size()); ++i) {
    keyed.push_back({KeyOf(problem.items[i], strategy.order, long_life), i});
  }
  std::sort(keyed.begin(), keyed.end());
  std::vector<int> order;
  for (const auto& [key, item] : keyed) order.push_back(item);
  return order;
}

}  // namespace

absl::StatusOr<Packing> Pack(absl::Span<const PackBuffer> buffers) {
  RETURN_IF_ERROR(CheckBuffers(buffers));
  Packing best;
  if (buffers.empty()) return best;
  const Problem problem = BuildProblem(buffers);
  best.lower_bound_bytes = problem.lower_bound_bytes;
  const int64_t good_enough_bytes =
      problem.lower_bound_bytes + problem.lower_bound_bytes / kGoodEnoughPart;
  for (const Strategy& strategy : kPortfolio) {
    Placement placement = Place(problem, MakeOrder(problem, strategy));
    if (best.offsets.empty() || placement.arena_bytes < best.arena_bytes) {
      best.offsets = std::move(placement.offsets);
      best.arena_bytes = placement.arena_bytes;
    }
    if (best.arena_bytes <= good_enough_bytes) break;
  }
  return best;
}

}  // namespace terrace
