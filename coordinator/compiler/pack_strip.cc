// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack_strip.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace terrace {

PackStrip::PackStrip(int64_t page_bytes, int rows, std::vector<int> rows_left,
                     std::vector<int64_t> weights)
    : page_(page_bytes),
      rows_(rows),
      left_(std::move(rows_left)),
      weights_(std::move(weights)),
      items_(static_cast<size_t>(rows) * left_.size()) {}

// The best offset so far of those that are offered, lowest first.
class PackStrip::Best {
 public:
  Best(const PackStrip& strip, const RowItem& item, RowChoice choice, int64_t* steps)
      : strip_(strip), item_(item), choice_(choice), steps_(steps) {}

  // All offsets in a hole that may be worth taking: its ends, and the edges of rows in it.
  void OfferHole(int64_t begin, int64_t end) {
    const int64_t page = strip_.page_;
    if (end - begin < item_.bytes) return;
    const int64_t first_edge = (begin + page - 1) / page * page, last_edge = end / page * page;
    int64_t offsets[] = {begin, first_edge - item_.bytes, first_edge, last_edge - item_.bytes,
                         end - item_.bytes};
    std::sort(std::begin(offsets), std::end(offsets));
    int64_t before = -1;
    for (const int64_t offset : offsets) {
      if (offset < begin || offset + item_.bytes > end || offset == before) continue;
      before = offset;
      Offer(offset);
    }
  }

  bool IsDone() const { return cost_ == 0 || (choice_ == RowChoice::kLowest && offset_ >= 0); }
  std::optional<int64_t> offset() const {
    return offset_ < 0 ? std::nullopt : std::optional(offset_);
  }

 private:
  void Offer(int64_t offset) {
    if (IsDone()) return;
    if (!strip_.MayLieAt(item_, offset)) return;
    const std::optional<int64_t> cost = strip_.CostOf(item_, strip_.PlaceOf(offset), steps_);
    if (!cost.has_value() || *cost >= cost_) return;
    cost_ = *cost;
    offset_ = offset;
  }

  const PackStrip& strip_;
  const RowItem& item_;
  const RowChoice choice_;
  int64_t* const steps_;
  int64_t offset_ = -1;
  int64_t cost_ = std::numeric_limits<int64_t>::max();
};

bool PackStrip::MayLieAt(const RowItem& item, int64_t offset) const {
  const int64_t end = offset + item.bytes;
  return !item.at_edge || offset % page_ == 0 || end % page_ == 0 || offset / page_ != end / page_;
}

std::optional<int64_t> PackStrip::CostOf(const RowItem& item, RowPlace place,
                                         int64_t* steps) const {
  const int64_t first = place.offset / page_;
  const bool crosses = place.offset % page_ + item.bytes > page_;
  const int64_t last = crosses ? place.next_row : first;
  const uint16_t* one = &items_[static_cast<size_t>(first) * left_.size()];
  const uint16_t* other = &items_[static_cast<size_t>(last) * left_.size()];
  int64_t cost = 0;
  *steps -= (crosses ? 2 : 1) * (item.end - item.begin);
  for (int t = item.begin; t < item.end; ++t) {
    const int rows = (one[t] == 0 ? 1 : 0) + (crosses && other[t] == 0 ? 1 : 0);
    if (rows > left_[t]) return std::nullopt;
    cost += rows * weights_[t];
  }
  return cost;
}

std::vector<PackStrip::Segment> PackStrip::Near(const RowItem& item) const {
  std::vector<Segment> near;
  for (const Segment& segment : segments_) {
    if (segment.born < item.end && item.begin < segment.dead) near.push_back(segment);
  }
  return near;
}

std::vector<PackStrip::Room> PackStrip::RoomsOf(const std::vector<Segment>& near) const {
  std::vector<Room> rooms;
  for (const Segment& segment : near) {
    const int64_t row = segment.begin / page_;
    if (rooms.empty() || rooms.back().row != row)
      rooms.push_back({.row = row, .begin = segment.begin - row * page_, .end = page_});
    // They need not meet each other, so the last that begins need not be the last that ends.
    rooms.back().end = std::min(rooms.back().end, (row + 1) * page_ - segment.end);
  }
  return rooms;
}

std::optional<RowPlace> PackStrip::FindSplit(const RowItem& item, int64_t* steps) const {
  const std::vector<Room> ends = RoomsOf(Near(item));
  std::vector<Room> begins = ends;
  std::sort(begins.begin(), begins.end(), [](const Room& a, const Room& b) {
    return std::pair(a.begin, a.row) < std::pair(b.begin, b.row);
  });
  *steps -= static_cast<int64_t>(segments_.size() + 8 * ends.size());
  std::optional<RowPlace> place;
  int64_t left_over = std::numeric_limits<int64_t>::max();
  for (const Room& end : ends) {
    if (end.end == 0 || end.end >= item.bytes) continue;
    const int64_t others = item.bytes - end.end;
    auto it = std::partition_point(begins.begin(), begins.end(),
                                   [&](const Room& room) { return room.begin < others; });
    for (; it != begins.end() && it->begin - others < left_over; ++it) {
      --*steps;
      const RowPlace there = {(end.row + 1) * page_ - end.end, it->row};
      if (it->row == end.row || !CostOf(item, there, steps).has_value()) continue;
      left_over = it->begin - others;
      place = there;
      break;
    }
  }
  return place;
}

std::optional<RowPlace> PackStrip::Place(int id, const RowItem& item, RowChoice choice,
                                         int64_t* steps) {
  Best best(*this, item, choice, steps);
  int64_t at = 0;
  *steps -= static_cast<int64_t>(segments_.size());
  for (const Segment& segment : segments_) {
    if (segment.dead <= item.begin || item.end <= segment.born) continue;
    if (segment.begin > at) best.OfferHole(at, segment.begin);
    if (best.IsDone()) break;
    at = std::max(at, segment.end);
  }
  if (!best.IsDone()) best.OfferHole(at, rows_ * page_);
  const std::optional<RowPlace> place =
      best.offset().has_value() ? std::optional(PlaceOf(*best.offset())) : FindSplit(item, steps);
  if (place.has_value()) PlaceAt(id, item, *place);
  return place;
}

void PackStrip::PlaceAt(int id, const RowItem& item, RowPlace place) {
  const int64_t row_end = (place.offset / page_ + 1) * page_;
  const int64_t end = place.offset + item.bytes;
  Add({place.offset, std::min(end, row_end), item.begin, item.end, id});
  if (end <= row_end) return;
  const int64_t next = place.next_row * page_;
  Add({next, next + end - row_end, item.begin, item.end, id});
}

void PackStrip::Add(const Segment& segment) {
  segments_.insert(
      std::upper_bound(segments_.begin(), segments_.end(), segment,
                       [](const Segment& a, const Segment& b) { return a.begin < b.begin; }),
      segment);
  Count(segment, 1);
}

void PackStrip::Count(const Segment& segment, int by) {
  uint16_t* items = &items_[static_cast<size_t>(segment.begin / page_) * left_.size()];
  for (int t = segment.born; t < segment.dead; ++t) {
    left_[t] -= items[t] == 0 ? 1 : 0;
    items[t] = static_cast<uint16_t>(items[t] + by);
    left_[t] += items[t] == 0 ? 1 : 0;
  }
}

}  // namespace terrace
