// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack_row_pages.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "coordinator/compiler/pack_sweep.h"

namespace terrace {
namespace {

// Of large pages there may be more addresses: what names 2 MiB takes some bytes of a page table.
// And of few: so many name as much as 128 KiB of it do.
constexpr int64_t kLargePageBytes = int64_t{2} << 20;
constexpr int64_t kLargeAddressTimes = 32;
constexpr int64_t kFewAddressPages = 16'384;

// A time in which a row is never empty.
struct Period {
  int64_t row = 0;
  int begin = 0;
  int end = 0;
  int64_t page = -1;
};

// The pages of a buffer in the order of its addresses; a row's page is known, whole ones are not.
struct Shape {
  int64_t first = -1;  // a row's page, or none
  int64_t whole = 0;
  int64_t last = -1;
  int64_t skip_bytes = 0;  // of the first page that is named
};

class RowPages {
 public:
  RowPages(const PackProblem& problem, int64_t base_bytes, absl::Span<const RowPlace> rests,
           PackAddresses* addresses, int64_t* steps)
      : problem_(problem),
        base_(base_bytes),
        page_(addresses->page_bytes()),
        rests_(rests),
        addresses_(*addresses),
        steps_(*steps),
        free_from_(addresses->memory_bytes() / page_),
        seen_(free_from_.size()) {
    for (size_t p = 0; p < free_from_.size(); ++p) named_.push_back(static_cast<int64_t>(p));
    for (const PackPageRun& run : addresses->Runs()) Name(run);
    MakePeriods();
  }

  std::optional<std::vector<int64_t>> Run() {
    // The base stays: its whole pages, and what is left of it in the first row.
    const int64_t whole = base_ / page_;
    std::fill_n(free_from_.begin(), whole, problem_.slots);
    std::vector<int> order(problem_.items.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return problem_.items[a].begin < problem_.items[b].begin;
    });
    std::vector<int64_t> offsets(order.size());
    size_t born = 0;
    for (const int i : order) {
      for (; born < periods_.size() && periods_[born].begin <= problem_.items[i].begin; ++born) {
        if (!GivePage(&periods_[born])) return std::nullopt;
      }
      const std::optional<int64_t> address = Place(i);
      if (!address.has_value() || steps_ <= 0) return std::nullopt;
      offsets[i] = *address - base_;
    }
    return offsets;
  }

 private:
  int64_t RestOf(int i) const { return problem_.items[i].bytes % page_; }
  // Over two rows.
  bool IsSplit(int i) const { return rests_[i].offset % page_ + RestOf(i) > page_; }

  void MakePeriods() {
    if (base_ % page_ > 0) periods_.push_back({.begin = 0, .end = problem_.slots});
    for (size_t i = 0; i < problem_.items.size(); ++i) {
      const PackItem& item = problem_.items[i];
      if (RestOf(i) == 0) continue;
      periods_.push_back({rests_[i].offset / page_, item.begin, item.end});
      if (IsSplit(i)) periods_.push_back({rests_[i].next_row, item.begin, item.end});
    }
    std::sort(periods_.begin(), periods_.end(), [](const Period& a, const Period& b) {
      return std::tuple(a.row, a.begin, a.end) < std::tuple(b.row, b.begin, b.end);
    });
    size_t count = 0;
    for (const Period& period : periods_) {
      if (count > 0 && periods_[count - 1].row == period.row &&
          period.begin < periods_[count - 1].end) {
        periods_[count - 1].end = std::max(periods_[count - 1].end, period.end);
      } else {
        periods_[count++] = period;
      }
    }
    periods_.resize(count);
    std::stable_sort(periods_.begin(), periods_.end(), [](const Period& a, const Period& b) {
      return std::tuple(a.begin, a.row) < std::tuple(b.begin, b.row);
    });
    for (const Period& period : periods_) rows_ = std::max(rows_, period.row + 1);
    page_of_row_.assign(rows_, -1);
  }

  int64_t AliasPagesMax() const {
    const int64_t times = page_ < kLargePageBytes ? kPackAddressTimes : kLargeAddressTimes;
    const int64_t pages = static_cast<int64_t>(free_from_.size());
    return std::max(times * pages, std::min(kFewAddressPages, kLargeAddressTimes * pages));
  }

  bool IsFree(int64_t page, int now) const { return free_from_[page] <= now; }
  // Pages at which rows are, when nothing is in their way.
  bool IsOfRows(int64_t page) const {
    return page >= base_ / page_ && page < base_ / page_ + rows_;
  }

  bool GivePage(Period* period) {
    int64_t page = base_ / page_ + period->row;
    if (page >= static_cast<int64_t>(free_from_.size()) || !IsFree(page, period->begin)) {
      page = static_cast<int64_t>(free_from_.size()) - 1;
      while (page >= 0 && !IsFree(page, period->begin)) --page;
      steps_ -= static_cast<int64_t>(free_from_.size());
      if (page < 0) return false;
    }
    free_from_[page] = period->end;
    page_of_row_[period->row] = page;
    return true;
  }

  // When it is born the rows of its rest have their pages.
  Shape ShapeOf(int i) const {
    Shape shape = {.whole = problem_.items[i].bytes / page_};
    const int64_t rest = RestOf(i);
    if (rest == 0) return shape;
    const int64_t row = rests_[i].offset / page_, begin = rests_[i].offset % page_;
    if (begin == 0 && shape.whole > 0) {
      shape.last = page_of_row_[row];
      return shape;
    }
    shape.first = page_of_row_[row];
    shape.skip_bytes = begin;
    if (IsSplit(i)) shape.last = page_of_row_[rests_[i].next_row];
    return shape;
  }

  std::optional<int64_t> Place(int i) {
    const Shape shape = ShapeOf(i);
    const int now = problem_.items[i].begin;
    std::optional<int64_t> address = Find(shape, now);
    if (!address.has_value()) {
      const std::vector<PackPageRun> free = FreeRuns(shape.whole, now);
      int64_t sum = 0;
      for (const PackPageRun& run : free) sum += run.pages;
      if (sum < shape.whole) return std::nullopt;
      const size_t runs = addresses_.Runs().size();
      address = addresses_.AddGroup(shape.first, free, shape.whole, shape.last, kPackRunsMax,
                                    AliasPagesMax());
      if (!address.has_value()) return std::nullopt;
      const std::vector<PackPageRun> all = addresses_.Runs();
      for (size_t k = runs; k < all.size(); ++k) Name(all[k]);
    }
    const int64_t begin = *address / page_ + (shape.first < 0 ? 0 : 1);
    for (int64_t v = begin; v < begin + shape.whole; ++v) {
      free_from_[named_[v]] = problem_.items[i].end;
    }
    return *address + shape.skip_bytes;
  }

  void Name(const PackPageRun& run) {
    for (int64_t p = run.page; p < run.page + run.pages; ++p) named_.push_back(p);
  }

  // Addresses that name such pages already, those with the fewest pages of rows, the lowest.
  std::optional<int64_t> Find(const Shape& shape, int now) {
    const int64_t count = (shape.first < 0 ? 0 : 1) + shape.whole + (shape.last < 0 ? 0 : 1);
    std::optional<int64_t> best;
    int64_t best_cost = std::numeric_limits<int64_t>::max();
    for (int64_t v = 0; v + count <= static_cast<int64_t>(named_.size()) && best_cost > 0; ++v) {
      const int64_t cost = CostAt(shape, now, v);
      if (cost < 0 || cost >= best_cost) continue;
      best_cost = cost;
      best = v * page_;
    }
    return best;
  }

  // Pages of rows among the whole ones that are named from v on. -1 where they are no such pages.
  int64_t CostAt(const Shape& shape, int now, int64_t v) {
    int64_t cost = 0;
    ++serial_;
    --steps_;
    if (shape.first >= 0 && named_[v++] != shape.first) return -1;
    for (const int64_t end = v + shape.whole; v < end; ++v) {
      const int64_t page = named_[v];
      if (!IsFree(page, now) || seen_[page] == serial_) return -1;
      seen_[page] = serial_;
      cost += IsOfRows(page);
      --steps_;
    }
    if (shape.last >= 0 && named_[v] != shape.last) return -1;
    return cost;
  }

  // Those that rows are not likely to want, where they do.
  std::vector<PackPageRun> FreeRuns(int64_t pages, int now) {
    std::vector<PackPageRun> runs;
    int64_t sum = 0;
    for (const bool of_rows : {false, true}) {
      for (int64_t p = 0; p < static_cast<int64_t>(free_from_.size()); ++p) {
        if (!IsFree(p, now) || IsOfRows(p) != of_rows) continue;
        if (of_rows && sum >= pages) return runs;
        if (!runs.empty() && runs.back().page + runs.back().pages == p) {
          ++runs.back().pages;
        } else {
          runs.push_back({p, 1});
        }
        ++sum;
      }
      steps_ -= static_cast<int64_t>(free_from_.size());
    }
    return runs;
  }

  const PackProblem& problem_;
  const int64_t base_;
  const int64_t page_;
  const absl::Span<const RowPlace> rests_;
  PackAddresses& addresses_;
  int64_t& steps_;
  std::vector<int> free_from_;   // by page: the slot in which the last piece there is dead
  std::vector<int64_t> named_;   // by page of addresses, the page of memory
  std::vector<int64_t> seen_;    // by page: in which look it was last seen
  int64_t serial_ = 0;           // of the look
  std::vector<Period> periods_;  // by birth
  int64_t rows_ = 0;
  std::vector<int64_t> page_of_row_;  // now
};

}  // namespace

std::optional<std::vector<int64_t>> PlaceOnPages(const PackProblem& problem, int64_t base_bytes,
                                                 absl::Span<const RowPlace> rests,
                                                 PackAddresses* addresses, int64_t* steps) {
  return RowPages(problem, base_bytes, rests, addresses, steps).Run();
}

}  // namespace terrace
