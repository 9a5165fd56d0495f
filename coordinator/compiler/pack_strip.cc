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
    const std::optional<int64_t> cost = strip_.CostOf(item_, offset, steps_);
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

std::optional<int64_t> PackStrip::CostOf(const RowItem& item, int64_t offset,
                                         int64_t* steps) const {
  const int64_t first = offset / page_, last = (offset + item.bytes - 1) / page_;
  const uint16_t* one = &items_[static_cast<size_t>(first) * left_.size()];
  const uint16_t* other = &items_[static_cast<size_t>(last) * left_.size()];
  int64_t cost = 0;
  *steps -= (last - first + 1) * (item.end - item.begin);
  for (int t = item.begin; t < item.end; ++t) {
    const int rows = (one[t] == 0 ? 1 : 0) + (last > first && other[t] == 0 ? 1 : 0);
    if (rows > left_[t]) return std::nullopt;
    cost += rows * weights_[t];
  }
  return cost;
}

std::optional<int64_t> PackStrip::Place(int id, const RowItem& item, RowChoice choice,
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
  if (best.offset().has_value()) PlaceAt(id, item, *best.offset());
  return best.offset();
}

void PackStrip::PlaceAt(int id, const RowItem& item, int64_t offset) {
  const Segment segment = {offset, offset + item.bytes, item.begin, item.end, id};
  segments_.insert(
      std::upper_bound(segments_.begin(), segments_.end(), segment,
                       [](const Segment& a, const Segment& b) { return a.begin < b.begin; }),
      segment);
  Count(segment, 1);
}

void PackStrip::Count(const Segment& segment, int by) {
  for (int64_t row = segment.begin / page_; row <= (segment.end - 1) / page_; ++row) {
    uint16_t* items = &items_[static_cast<size_t>(row) * left_.size()];
    for (int t = segment.born; t < segment.dead; ++t) {
      left_[t] -= items[t] == 0 ? 1 : 0;
      items[t] = static_cast<uint16_t>(items[t] + by);
      left_[t] += items[t] == 0 ? 1 : 0;
    }
  }
}

// The place in whose way the cheapest lies, of those that touch a segment or the edge of a row.
class PackStrip::Cheapest {
 public:
  Cheapest(const PackStrip& strip, const RowItem& item, absl::Span<const int64_t> prices,
           int64_t* steps)
      : strip_(strip), item_(item), prices_(prices), steps_(steps) {
    for (const Segment& segment : strip.segments_) {
      if (segment.born < item.end && item.begin < segment.dead) near_.push_back(segment);
    }
    *steps_ -= static_cast<int64_t>(strip.segments_.size());
  }

  std::optional<int64_t> Find() {
    std::vector<int64_t> edges;
    for (int64_t row = 0; row <= strip_.rows_; ++row) edges.push_back(row * strip_.page_);
    for (const Segment& segment : near_) {
      if (segment.begin != edges.back()) edges.push_back(segment.begin);
      edges.push_back(segment.end);
    }
    std::sort(edges.begin(), edges.end());
    edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
    *steps_ -= static_cast<int64_t>(8 * edges.size());
    for (const int64_t edge : edges) {
      Offer(edge);
      Offer(edge - item_.bytes);
    }
    return offset_ < 0 ? std::nullopt : std::optional(offset_);
  }

 private:
  void Offer(int64_t offset) {
    if (offset < 0 || offset + item_.bytes > strip_.rows_ * strip_.page_) return;
    if (!strip_.MayLieAt(item_, offset)) return;
    const int64_t price = PriceAt(offset);
    if (price < 0 || price >= price_) return;
    if (!strip_.CostOf(item_, offset, steps_).has_value()) return;
    price_ = price;
    offset_ = offset;
  }

  // -1 where something lies that stays.
  int64_t PriceAt(int64_t offset) {
    int64_t price = 0;
    // None is longer than a page.
    auto it = std::partition_point(near_.begin(), near_.end(), [&](const Segment& s) {
      return s.begin <= offset - strip_.page_;
    });
    for (; it != near_.end() && it->begin < offset + item_.bytes; ++it) {
      --*steps_;
      if (it->end <= offset) continue;
      if (it->id < 0) return -1;
      price += prices_[it->id] * (it->end - it->begin);
      if (price >= price_) break;
    }
    return price;
  }

  const PackStrip& strip_;
  const RowItem& item_;
  const absl::Span<const int64_t> prices_;
  int64_t* const steps_;
  std::vector<Segment> near_;  // those that meet it, by offset
  int64_t offset_ = -1;
  int64_t price_ = std::numeric_limits<int64_t>::max();
};

std::optional<int64_t> PackStrip::Force(int id, const RowItem& item,
                                        absl::Span<const int64_t> prices, std::vector<int>* removed,
                                        int64_t* steps) {
  const std::optional<int64_t> offset = Cheapest(*this, item, prices, steps).Find();
  if (!offset.has_value()) return std::nullopt;
  std::erase_if(segments_, [&](const Segment& s) {
    if (s.born >= item.end || item.begin >= s.dead) return false;
    if (s.begin >= *offset + item.bytes || s.end <= *offset) return false;
    removed->push_back(s.id);
    Count(s, -1);
    return true;
  });
  PlaceAt(id, item, *offset);
  return offset;
}

}  // namespace terrace
