// A series that keeps its newest points as they are and, the older they get, fewer of them: of
// points that each stand for 2^n, the oldest two become one that stands for 2^(n+1) whenever there
// are more than kPointsOfAWeight. A series of N points keeps about kPointsOfAWeight * log2(N /
// kPointsOfAWeight), so it is bounded for as long as anything runs.
//
// `Point` has `int64_t weight` (1 when it is new) and `void Absorb(const Point& newer)`, which
// makes it stand for both. Not thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace terrace {

inline constexpr size_t kPointsOfAWeight = 256;

template <typename Point>
class Thinned {
 public:
  void Add(Point point) {
    points_.push_back(std::move(point));
    // Weights fall from the oldest to the newest, so that those of one weight lie side by side.
    size_t end = points_.size();
    for (int64_t weight = points_.back().weight; end > 0; weight *= 2) {
      size_t begin = end;
      while (begin > 0 && points_[begin - 1].weight == weight) --begin;
      if (end - begin <= kPointsOfAWeight) return;
      points_[begin].Absorb(points_[begin + 1]);
      points_.erase(points_.begin() + static_cast<std::ptrdiff_t>(begin) + 1);
      end = begin + 1;
    }
  }

  // Drops points of the end while `newer` says so.
  template <typename IsNewer>
  void DropWhile(IsNewer newer) {
    while (!points_.empty() && newer(points_.back())) points_.pop_back();
  }

  // As Points() of another gave them.
  void Restore(std::vector<Point> points) { points_ = std::move(points); }
  const std::vector<Point>& points() const { return points_; }

 private:
  std::vector<Point> points_;  // the oldest first
};

}  // namespace terrace
