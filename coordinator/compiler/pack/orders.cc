// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack/orders.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <utility>

#include "coordinator/compiler/pack/occupancy.h"

namespace terrace {
namespace {

constexpr PackStrategy kPortfolio[] = {
    {PackKey::kSizeClassStart}, {PackKey::kSizeEnd},          {PackKey::kLifeClassStart},
    {PackKey::kLifeClassSize},  {PackKey::kLongThenSize, 20}, {PackKey::kSize},
};

using Key = std::array<int64_t, 3>;

int64_t Class(int64_t value) { return std::bit_width(static_cast<uint64_t>(value)); }

// Items of smaller keys go first, of equal keys by their index. Integers only: the same on every
// machine.
Key KeyOf(const PackItem& item, PackKey key, int long_life) {
  switch (key) {
    case PackKey::kSize:
      return {-item.bytes, item.begin, -item.end};
    case PackKey::kSizeEnd:
      return {-item.bytes, -item.end, item.begin};
    case PackKey::kSizeClassStart:
      return {-Class(item.bytes), item.begin, -item.bytes};
    case PackKey::kLifeClassStart:
      return {-Class(item.life()), item.begin, -item.bytes};
    case PackKey::kLifeClassSize:
      return {-Class(item.life()), -item.bytes, item.begin};
    case PackKey::kLongThenSize:
      return item.life() >= long_life ? Key{0, item.begin, -item.bytes}
                                      : Key{1, -item.bytes, item.begin};
  }
  return {};
}

// The life that `percent` % of the items reach.
int LongLife(const std::vector<PackItem>& items, int percent) {
  std::vector<int> lives;
  lives.reserve(items.size());
  for (const PackItem& item : items) lives.push_back(item.life());
  const auto nth = lives.begin() + lives.size() * percent / 100;
  std::nth_element(lives.begin(), nth, lives.end(), std::greater<>());
  return *nth;
}

}  // namespace

absl::Span<const PackStrategy> PackPortfolio() { return kPortfolio; }

std::vector<int> MakePackOrder(const PackProblem& problem, const PackStrategy& strategy) {
  const int long_life = LongLife(problem.items, strategy.long_percent);
  struct Keyed {
    bool partial = false;  // of the problem's time; what lives through all of it goes first
    Key key;
    int item = 0;
    auto operator<=>(const Keyed&) const = default;
  };
  std::vector<Keyed> keyed;
  keyed.reserve(problem.items.size());
  for (int i = 0; i < static_cast<int>(problem.items.size()); ++i) {
    const PackItem& item = problem.items[i];
    keyed.push_back({item.life() < problem.slots, KeyOf(item, strategy.key, long_life), i});
  }
  std::sort(keyed.begin(), keyed.end());
  std::vector<int> order;
  order.reserve(keyed.size());
  for (const Keyed& k : keyed) order.push_back(k.item);
  return order;
}

PackPlacement PlaceInOrder(const PackProblem& problem, absl::Span<const int> order) {
  PackPlacement placement;
  placement.offsets.resize(problem.items.size());
  Occupancy occupancy(problem.slots);
  for (int i : order) {
    const PackItem& item = problem.items[i];
    SlotRange whole;
    const absl::Span<const SlotRange> lives = item.LivesOr(&whole);
    const int64_t offset = occupancy.FindLowest(lives, item.bytes);
    for (const SlotRange& life : lives) occupancy.Take(life.begin, life.end, offset, item.bytes);
    placement.offsets[i] = offset;
    placement.arena_bytes = std::max(placement.arena_bytes, offset + item.bytes);
  }
  return placement;
}

}  // namespace terrace
