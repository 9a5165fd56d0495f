// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack_rows.h"

#include <algorithm>
#include <utility>

#include "coordinator/compiler/pack_orders.h"
#include "coordinator/compiler/pack_strip.h"

namespace terrace {
namespace {

// How often what found no place goes first next time.
constexpr int kRounds = 6;
// Of ejections from one order.
constexpr int64_t kEjectSteps = 200'000'000;
// Rows of the strip, of what the rests need at once; what is empty costs nothing but room here.
constexpr int64_t kRowTimes = 2;
constexpr int64_t kMoreRows = 8;
// Of rows by slots, two bytes each.
constexpr int64_t kCellsMax = int64_t{1} << 24;
// Cells that an empty strip clears in a step; steps to sort an item into an order.
constexpr int64_t kCellsPerStep = 8;
constexpr int64_t kStepsPerSorted = 64;
// A slot weighs from 1, where a tenth of the bound or more is free, to as much.
constexpr int64_t kWeightMax = 1024;
constexpr int64_t kWeightTenths = 10;

class RowPacker {
 public:
  RowPacker(const PackProblem& problem, const RowRules& rules, int64_t* steps)
      : problem_(problem), rests_(problem), page_(rules.page_bytes), steps_(*steps) {
    const int64_t base_pages = rules.base_bytes / page_;
    std::vector<int64_t> live(problem.slots, rules.base_bytes), rests(problem.slots);
    pages_.assign(problem.slots, static_cast<int>(base_pages));
    for (size_t i = 0; i < problem.items.size(); ++i) {
      const PackItem& item = problem.items[i];
      const int64_t whole = item.bytes / page_, rest = item.bytes % page_;
      rests_.items[i].bytes = rest;
      items_.push_back({rest, item.begin, item.end, whole > 0});
      for (int t = item.begin; t < item.end; ++t) {
        pages_[t] += static_cast<int>(whole);
        live[t] += item.bytes;
        rests[t] += rest;
      }
      steps_ -= item.life();
    }
    memory_pages_ = rules.memory_bytes / page_;
    const int64_t most = *std::max_element(rests.begin(), rests.end());
    rows_ = std::min(memory_pages_ - base_pages, kRowTimes * most / page_ + kMoreRows);
    base_ = {rules.base_bytes % page_, 0, problem.slots, false};
    const int64_t bound = rules.base_bytes + problem.lower_bound_bytes;
    for (const int64_t bytes : live) {
      const int64_t free = (bound - bytes) / (bound / kWeightMax + 1);
      weights_.push_back(std::max<int64_t>(1, kWeightMax - kWeightTenths * free));
    }
  }

  std::optional<std::vector<RowPlace>> Improve() {
    if (!IsPossible()) return std::nullopt;
    for (const RowChoice choice : {RowChoice::kFewest, RowChoice::kLowest}) {
      for (const PackStrategy& strategy : PackPortfolio()) {
        for (const PackProblem* keys : {static_cast<const PackProblem*>(&rests_), &problem_}) {
          if (ImproveFrom(OrderOf(*keys, strategy), choice)) return std::move(places_);
          if (steps_ <= 0) return std::nullopt;
        }
      }
    }
    return std::nullopt;
  }

  std::optional<std::vector<RowPlace>> Eject() {
    if (!IsPossible()) return std::nullopt;
    for (const PackStrategy& strategy : PackPortfolio()) {
      for (const PackProblem* keys : {static_cast<const PackProblem*>(&rests_), &problem_}) {
        for (const bool by_life : {true, false}) {
          if (EjectFrom(OrderOf(*keys, strategy), by_life)) return std::move(places_);
          if (steps_ <= 0) return std::nullopt;
        }
      }
    }
    return std::nullopt;
  }

 private:
  bool IsPossible() const {
    return rows_ * problem_.slots <= kCellsMax &&
           std::all_of(pages_.begin(), pages_.end(),
                       [&](int pages) { return pages <= memory_pages_; });
  }

  std::vector<int> OrderOf(const PackProblem& keys, const PackStrategy& strategy) {
    steps_ -= kStepsPerSorted * static_cast<int64_t>(keys.items.size());
    return MakePackOrder(keys, strategy);
  }

  PackStrip Empty() {
    steps_ -= rows_ * problem_.slots / kCellsPerStep + problem_.slots;
    std::vector<int> left;
    for (const int pages : pages_) left.push_back(static_cast<int>(memory_pages_) - pages);
    PackStrip strip(page_, static_cast<int>(rows_), std::move(left), weights_);
    if (base_.bytes > 0) strip.PlaceAt(-1, base_, strip.PlaceOf(0));
    return strip;
  }

  bool ImproveFrom(std::vector<int> order, RowChoice choice) {
    for (int round = 0; round < kRounds && steps_ > 0; ++round) {
      PackStrip strip = Empty();
      places_.assign(order.size(), {});
      std::vector<char> misfit(order.size());
      bool fits = true;
      for (const int i : order) {
        if (steps_ <= 0) return false;
        if (items_[i].bytes == 0) continue;
        const std::optional<RowPlace> place = strip.Place(i, items_[i], choice, &steps_);
        if (place.has_value()) {
          places_[i] = *place;
        } else {
          misfit[i] = true;
          fits = false;
        }
      }
      if (fits) return true;
      std::stable_partition(order.begin(), order.end(), [&](int i) { return misfit[i]; });
    }
    return false;
  }

  // In that order; what finds no place takes one from others, which look for another. What is often
  // without one becomes dear to move, and so is what lives long if that counts.
  bool EjectFrom(const std::vector<int>& order, bool by_life) {
    PackStrip strip = Empty();
    places_.assign(order.size(), {});
    std::vector<int> rank(order.size());
    std::vector<int64_t> prices;
    for (const RowItem& item : items_) prices.push_back(by_life ? item.end - item.begin : 1);
    const std::vector<int64_t> first_prices = prices;
    std::vector<int> waiting;
    for (size_t k = 0; k < order.size(); ++k) {
      rank[order[k]] = static_cast<int>(k);
      if (items_[order[k]].bytes > 0) waiting.push_back(order[k]);
    }
    const auto later = [&](int a, int b) { return rank[a] > rank[b]; };
    std::make_heap(waiting.begin(), waiting.end(), later);
    int64_t steps = std::min(kEjectSteps, steps_);
    steps_ -= steps;
    bool stuck = false;
    while (!waiting.empty() && !stuck && steps > 0) {
      std::pop_heap(waiting.begin(), waiting.end(), later);
      const int i = waiting.back();
      waiting.pop_back();
      std::optional<RowPlace> place = strip.Place(i, items_[i], RowChoice::kLowest, &steps);
      if (!place.has_value()) {
        prices[i] += first_prices[i];
        std::vector<int> removed;
        place = strip.Force(i, items_[i], prices, &removed, &steps);
        for (const int other : removed) {
          waiting.push_back(other);
          std::push_heap(waiting.begin(), waiting.end(), later);
        }
      }
      stuck = !place.has_value();
      if (!stuck) places_[i] = *place;
    }
    steps_ += steps;
    return waiting.empty() && !stuck;
  }

  const PackProblem& problem_;
  PackProblem rests_;  // the same with nothing but rests, for orders
  const int64_t page_;
  int64_t& steps_;
  std::vector<RowItem> items_;
  RowItem base_;
  int64_t memory_pages_ = 0;
  int64_t rows_ = 0;
  std::vector<int> pages_;  // by slot: whole ones of all that lives
  std::vector<int64_t> weights_;
  std::vector<RowPlace> places_;
};

}  // namespace

std::optional<std::vector<RowPlace>> PackIntoRows(const PackProblem& problem, const RowRules& rules,
                                                  int64_t* steps) {
  if (problem.items.empty()) return std::vector<RowPlace>();
  return RowPacker(problem, rules, steps).Improve();
}

std::optional<std::vector<RowPlace>> EjectIntoRows(const PackProblem& problem,
                                                   const RowRules& rules, int64_t* steps) {
  if (problem.items.empty()) return std::vector<RowPlace>();
  return RowPacker(problem, rules, steps).Eject();
}

}  // namespace terrace
