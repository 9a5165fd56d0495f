// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack/sweep.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>

namespace terrace {
namespace {

// Joins what touches or overlaps.
void Merge(std::vector<ByteRange>* ranges) {
  std::sort(ranges->begin(), ranges->end(),
            [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
  size_t count = 0;
  for (const ByteRange& range : *ranges) {
    if (count > 0 && range.begin <= (*ranges)[count - 1].end) {
      (*ranges)[count - 1].end = std::max((*ranges)[count - 1].end, range.end);
    } else {
      (*ranges)[count++] = range;
    }
  }
  ranges->resize(count);
}

class PageSweep {
 public:
  PageSweep(const PackProblem& problem, int64_t base_bytes, std::vector<int64_t>* offsets,
            PackAddresses* addresses, int64_t* steps)
      : problem_(problem),
        base_(base_bytes),
        offsets_(*offsets),
        addresses_(*addresses),
        steps_(*steps),
        order_(problem.items.size()),
        moves_(problem.items.size()) {
    std::iota(order_.begin(), order_.end(), 0);
    std::sort(order_.begin(), order_.end(), [&](int a, int b) {
      const PackItem &x = problem.items[a], &y = problem.items[b];
      return std::tuple(x.begin, -x.end, a) < std::tuple(y.begin, -y.end, b);
    });
    for (size_t i = 0; i < problem.items.size(); ++i) {
      moves_[i] = base_ + offsets_[i] + problem.items[i].bytes > addresses_.memory_bytes();
    }
  }

  bool Run() {
    for (size_t k = 0; k < order_.size(); ++k) {
      const int item = order_[k];
      if (moves_[item] && (steps_ <= 0 || !Place(k))) return false;
      alive_.push_back(item);
    }
    return true;
  }

 private:
  const PackItem& Item(int i) const { return problem_.items[i]; }
  int64_t PagesOfMemory() const { return addresses_.memory_bytes() / addresses_.page_bytes(); }

  // What is there already when the k-th item is born.
  std::vector<ByteRange> Earlier(size_t k) {
    const int now = Item(order_[k]).begin;
    std::erase_if(alive_, [&](int i) { return Item(i).end <= now; });
    std::vector<ByteRange> ranges;
    if (base_ > 0) ranges.push_back({0, base_});
    for (const int i : alive_) {
      addresses_.AppendMemory(base_ + offsets_[i], Item(i).bytes, &ranges);
    }
    Merge(&ranges);
    steps_ -= static_cast<int64_t>(alive_.size() + ranges.size());
    return ranges;
  }

  // What comes later while the k-th item lives and has its place already: it could move.
  std::vector<int> Later(size_t k) {
    std::vector<int> items;
    const int end = Item(order_[k]).end;
    for (size_t l = k + 1; l < order_.size() && Item(order_[l]).begin < end; ++l) {
      if (!moves_[order_[l]]) items.push_back(order_[l]);
      --steps_;
    }
    return items;
  }

  std::vector<ByteRange> Holes(const std::vector<ByteRange>& earlier,
                               const std::vector<int>& later) {
    std::vector<ByteRange> taken = earlier;
    for (const int i : later) {
      if (moves_[i]) continue;
      taken.push_back({base_ + offsets_[i], base_ + offsets_[i] + Item(i).bytes});
    }
    Merge(&taken);
    std::vector<ByteRange> holes;
    int64_t at = 0;
    for (const ByteRange& range : taken) {
      if (range.begin > at) holes.push_back({at, range.begin});
      at = range.end;
    }
    if (at < addresses_.memory_bytes()) holes.push_back({at, addresses_.memory_bytes()});
    steps_ -= static_cast<int64_t>(4 * taken.size());
    return holes;
  }

  bool Place(size_t k) {
    const int item = order_[k];
    const std::vector<ByteRange> earlier = Earlier(k);
    const std::vector<int> later = Later(k);
    Blockers blockers;
    for (;;) {
      const std::vector<ByteRange> holes = Holes(earlier, later);
      std::optional<int64_t> address = addresses_.Find(holes, Item(item).bytes);
      if (!address.has_value()) {
        address = addresses_.Add(holes, Item(item).bytes, kPackRunsMax,
                                 kPackAddressTimes * PagesOfMemory());
      }
      if (address.has_value()) {
        offsets_[item] = *address - base_;
        return true;
      }
      if (blockers.cost.empty()) blockers = BlockersOf(earlier, later);
      if (!MakeRoom(Item(item).bytes, later, &blockers) || steps_ <= 0) return false;
    }
  }

  // By page: of what comes later and lies there, its bytes, shared out evenly over its pages. -1
  // where something lies that came earlier.
  struct Blockers {
    std::vector<int64_t> cost;
    int64_t free_pages = 0;
  };

  // Of the pages of an item.
  template <typename Visit>
  void ForEachPage(int i, const Visit& visit) {
    const int64_t page = addresses_.page_bytes();
    const int64_t first = (base_ + offsets_[i]) / page;
    const int64_t last = (base_ + offsets_[i] + Item(i).bytes - 1) / page;
    const int64_t share = std::max<int64_t>(1, Item(i).bytes / (last - first + 1));
    for (int64_t p = first; p <= last; ++p) visit(p, share);
    steps_ -= last - first + 1;
  }

  Blockers BlockersOf(const std::vector<ByteRange>& earlier, const std::vector<int>& later) {
    Blockers blockers;
    blockers.cost.resize(PagesOfMemory());
    for (const ByteRange& range : earlier) {
      for (int64_t p = range.begin / addresses_.page_bytes();
           p <= (range.end - 1) / addresses_.page_bytes(); ++p) {
        blockers.cost[p] = -1;
      }
    }
    for (const int i : later) {
      if (moves_[i]) continue;
      ForEachPage(i, [&](int64_t p, int64_t share) {
        if (blockers.cost[p] >= 0) blockers.cost[p] += share;
      });
    }
    blockers.free_pages = std::count(blockers.cost.begin(), blockers.cost.end(), 0);
    steps_ -= PagesOfMemory();
    return blockers;
  }

  // Frees at least one page more, as many as `bytes` need, of those in whose way the fewest bytes
  // are. False when there are none.
  bool MakeRoom(int64_t bytes, const std::vector<int>& later, Blockers* blockers) {
    const int64_t pages = bytes / addresses_.page_bytes();
    bool any = false;
    while (!any || blockers->free_pages < pages) {
      int64_t best = -1;
      for (int64_t p = 0; p < PagesOfMemory(); ++p) {
        const int64_t cost = blockers->cost[p];
        if (cost > 0 && (best < 0 || cost < blockers->cost[best])) best = p;
      }
      steps_ -= PagesOfMemory() + static_cast<int64_t>(later.size());
      if (best < 0) return any;
      any = true;
      for (const int i : later) {
        if (!moves_[i] && LiesOn(i, best)) Unplace(i, blockers);
      }
    }
    return true;
  }

  bool LiesOn(int i, int64_t p) const {
    const int64_t begin = base_ + offsets_[i], page = addresses_.page_bytes();
    return begin < (p + 1) * page && begin + Item(i).bytes > p * page;
  }

  void Unplace(int i, Blockers* blockers) {
    moves_[i] = true;
    ForEachPage(i, [&](int64_t p, int64_t share) {
      if (blockers->cost[p] < 0) return;
      blockers->cost[p] -= share;
      if (blockers->cost[p] == 0) ++blockers->free_pages;
    });
  }

  const PackProblem& problem_;
  const int64_t base_;
  std::vector<int64_t>& offsets_;
  PackAddresses& addresses_;
  int64_t& steps_;           // left: items, ranges and pages looked at
  std::vector<int> order_;   // by birth
  std::vector<char> moves_;  // by item: it has no place, or had none when it was born
  std::vector<int> alive_;   // of those born so far, and some that died since
};

}  // namespace

bool SweepIntoPages(const PackProblem& problem, int64_t base_bytes, std::vector<int64_t>* offsets,
                    PackAddresses* addresses, int64_t* steps) {
  return PageSweep(problem, base_bytes, offsets, addresses, steps).Run();
}

}  // namespace terrace
