// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <vector>

#include "coordinator/compiler/pack_strip.h"

namespace terrace {

// The place in whose way the cheapest lies: of those that touch a segment or the edge of a row, and
// of those at the end of one row and the beginning of another that take all that is free at one.
class PackStrip::Cheapest {
 public:
  Cheapest(const PackStrip& strip, const RowItem& item, absl::Span<const int64_t> prices,
           int64_t* steps)
      : strip_(strip), item_(item), prices_(prices), steps_(steps), near_(strip.Near(item)) {
    *steps_ -= static_cast<int64_t>(strip.segments_.size());
  }

  std::optional<RowPlace> Find() {
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
      OfferAt(edge);
      OfferAt(edge - item_.bytes);
    }
    OfferSplit();
    return place_;
  }

 private:
  void OfferAt(int64_t offset) {
    if (offset < 0 || offset + item_.bytes > strip_.rows_ * strip_.page_) return;
    if (strip_.MayLieAt(item_, offset)) Offer(strip_.PlaceOf(offset));
  }

  void OfferSplit() {
    const std::vector<Room> rooms = strip_.RoomsOf(near_);
    for (const Room& one : rooms) {
      if (*steps_ <= 0) return;
      for (const Room& other : rooms) {
        if (one.row == other.row) continue;
        const int64_t row_end = (one.row + 1) * strip_.page_;
        if (one.end > 0 && one.end < item_.bytes) Offer({row_end - one.end, other.row});
        if (other.begin > 0 && other.begin < item_.bytes)
          Offer({row_end - (item_.bytes - other.begin), other.row});
      }
    }
  }

  void Offer(RowPlace place) {
    const int64_t row_end = (place.offset / strip_.page_ + 1) * strip_.page_;
    const int64_t end = place.offset + item_.bytes;
    int64_t price = PriceIn(place.offset, std::min(end, row_end), price_);
    if (end > row_end && price < price_) {
      const int64_t next = place.next_row * strip_.page_;
      price += PriceIn(next, next + end - row_end, price_ - price);
    }
    if (price >= price_) return;
    if (!strip_.CostOf(item_, place, steps_).has_value()) return;
    price_ = price;
    place_ = place;
  }

  // At least `enough` where something lies that stays.
  int64_t PriceIn(int64_t begin, int64_t end, int64_t enough) {
    int64_t price = 0;
    // None is longer than a page.
    auto it = std::partition_point(near_.begin(), near_.end(), [&](const Segment& s) {
      return s.begin <= begin - strip_.page_;
    });
    for (; it != near_.end() && it->begin < end; ++it) {
      --*steps_;
      if (it->end <= begin) continue;
      if (it->id < 0) return enough;
      price += prices_[it->id] * (it->end - it->begin);
      if (price >= enough) break;
    }
    return price;
  }

  const PackStrip& strip_;
  const RowItem& item_;
  const absl::Span<const int64_t> prices_;
  int64_t* const steps_;
  const std::vector<Segment> near_;
  std::optional<RowPlace> place_;
  int64_t price_ = std::numeric_limits<int64_t>::max();
};

std::optional<RowPlace> PackStrip::Force(int id, const RowItem& item,
                                         absl::Span<const int64_t> prices,
                                         std::vector<int>* removed, int64_t* steps) {
  const std::optional<RowPlace> place = Cheapest(*this, item, prices, steps).Find();
  if (!place.has_value()) return std::nullopt;
  const int64_t row_end = (place->offset / page_ + 1) * page_;
  const int64_t end = place->offset + item.bytes, next = place->next_row * page_;
  const size_t before = removed->size();
  const auto is_removed = [&](int other) {
    return std::find(removed->begin() + before, removed->end(), other) != removed->end();
  };
  for (const Segment& s : segments_) {
    if (s.born >= item.end || item.begin >= s.dead) continue;
    const bool in_first = s.begin < std::min(end, row_end) && s.end > place->offset;
    const bool in_next = end > row_end && s.begin < next + end - row_end && s.end > next;
    if ((in_first || in_next) && !is_removed(s.id)) removed->push_back(s.id);
  }
  std::erase_if(segments_, [&](const Segment& s) {
    if (!is_removed(s.id)) return false;
    Count(s, -1);
    return true;
  });
  PlaceAt(id, item, *place);
  return place;
}

}  // namespace terrace
