// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack_pages.h"

#include <algorithm>
#include <utility>

#include "coordinator/compiler/pack_fits.h"
#include "coordinator/compiler/pack_orders.h"
#include "coordinator/compiler/pack_row_pages.h"
#include "coordinator/compiler/pack_rows.h"
#include "coordinator/compiler/pack_sweep.h"

namespace terrace {
namespace {

constexpr int64_t kCpuPageBytes = 4096;
constexpr int64_t kCpuPages = 16'384;
constexpr int64_t kLargePageBytes = int64_t{2} << 20;

// Ceilings, in ten-thousandths over the bound.
constexpr int64_t kCeilings[] = {50, 95, 100, 150, 200, 300, 400};
// One part in so many over the bound is near.
constexpr int64_t kNearPart = 100;
// Where orders begin with what is small, one part in so many of a page: between large buffers it
// leaves parts of pages that nobody can use.
constexpr int64_t kSmallPart = 32;
// Placing an item, in steps, and how many may be for one more placement to begin with.
constexpr int64_t kStepsPerPlaced = 1000;
constexpr int64_t kFits = 200'000;
// Of giving rows and whole pages their pages: far more than that takes.
constexpr int64_t kPlaceSteps = 1'000'000'000;

// The same problem with time running the other way.
PackProblem Mirrored(PackProblem problem) {
  for (PackItem& item : problem.items) {
    item = {item.bytes, problem.slots - item.end, problem.slots - item.begin};
  }
  problem.peak_slot = problem.slots - 1 - problem.peak_slot;
  return problem;
}

// Where sweeps of one problem begin: the placement that there is, then others, made when they are
// asked for.
class Starts {
 public:
  Starts(const PagedProblem& paged, int64_t page_bytes)
      : problem_(paged.problem),
        mirrored_(Mirrored(paged.problem)),
        small_bytes_(page_bytes / kSmallPart),
        offsets_{paged.offsets} {}

  size_t size() const { return problem_.items.empty() ? 1 : 2 + 2 * PackPortfolio().size(); }

  const std::vector<int64_t>& Get(size_t k, int64_t fits_bytes, int64_t* steps) {
    while (offsets_.size() <= k) {
      *steps -= kStepsPerPlaced * static_cast<int64_t>(problem_.items.size());
      const size_t orders = PackPortfolio().size(), start = offsets_.size() - 1;
      if (start != orders) {
        const bool small_first = start > orders;
        offsets_.push_back(PlacedInOrder(small_first ? start - orders - 1 : start, small_first));
        continue;
      }
      *steps -= kStepsPerPlaced * kFits;
      offsets_.push_back(PackBelow(problem_, fits_bytes, kFits).offsets);
      if (offsets_.back().empty()) offsets_.back() = offsets_.front();
    }
    return offsets_[k];
  }

  const PackProblem& problem(bool mirrored) const { return mirrored ? mirrored_ : problem_; }

 private:
  std::vector<int64_t> PlacedInOrder(size_t strategy, bool small_first) const {
    std::vector<int> order = MakePackOrder(problem_, PackPortfolio()[strategy]);
    if (small_first) {
      std::stable_partition(order.begin(), order.end(),
                            [&](int i) { return problem_.items[i].bytes < small_bytes_; });
    }
    return PlaceInOrder(problem_, order).offsets;
  }

  const PackProblem& problem_;
  const PackProblem mirrored_;
  const int64_t small_bytes_;
  std::vector<std::vector<int64_t>> offsets_;
};

class PagePacker {
 public:
  PagePacker(absl::Span<const PagedProblem> problems, const PageRules& rules)
      : base_(rules.base_bytes),
        page_(rules.page_bytes),
        limit_(rules.limit_bytes),
        bound_(rules.base_bytes),
        bytes_(rules.base_bytes),
        steps_(rules.steps),
        eject_steps_(rules.eject_steps) {
    for (const PagedProblem& paged : problems) {
      starts_.emplace_back(paged, page_);
      bound_ = std::max(bound_, base_ + paged.problem.lower_bound_bytes);
      for (size_t i = 0; i < paged.offsets.size(); ++i) {
        bytes_ = std::max(bytes_, base_ + paged.offsets[i] + paged.problem.items[i].bytes);
      }
    }
  }

  // What a ceiling leaves of its share of the steps is for those above.
  std::optional<PagedPacking> Run() {
    const std::vector<int64_t> ceilings = Ceilings();
    for (size_t k = 0; k < ceilings.size(); ++k) {
      const int64_t kept = steps_ - steps_ / static_cast<int64_t>(ceilings.size() - k);
      steps_ -= kept;
      std::optional<PagedPacking> packing = Below(ceilings[k], Ejects(ceilings, k));
      if (packing.has_value()) return packing;
      steps_ += kept;
    }
    return std::nullopt;
  }

 private:
  bool IsNear(int64_t bytes) const { return bytes - bound_ <= bound_ / kNearPart; }
  bool IsOverLimit(int64_t bytes) const { return limit_ > 0 && bytes > limit_; }

  // They take seconds: not for what does not fit, nor where the ceiling above is near enough.
  bool Ejects(const std::vector<int64_t>& ceilings, size_t k) const {
    if (IsOverLimit(ceilings[k])) return false;
    return k + 1 == ceilings.size() || !IsNear(ceilings[k + 1]) || IsOverLimit(ceilings[k + 1]);
  }

  // Whole pages, rising, below what the problems take in one piece.
  std::vector<int64_t> Ceilings() const {
    std::vector<int64_t> ceilings;
    const auto add = [&](int64_t bytes) {
      const int64_t least = (bound_ + page_ - 1) / page_ * page_;
      const int64_t ceiling = std::max(bytes / page_ * page_, least);
      if (ceiling >= bytes_ || (!ceilings.empty() && ceiling <= ceilings.back())) return;
      ceilings.push_back(ceiling);
    };
    for (const int64_t part : kCeilings) {
      const int64_t bytes = bound_ + bound_ / 10'000 * part;
      const bool first = ceilings.empty();
      if (IsOverLimit(bytes)) add(limit_);
      if (!first || !IsOverLimit(bytes)) add(bytes);
    }
    if (limit_ > 0) add(limit_);  // of few pages one more may be many parts of the bound
    return ceilings;
  }

  std::optional<PagedPacking> Below(int64_t ceiling, bool ejects) {
    PackAddresses addresses(page_, ceiling);
    PagedPacking packing = {.arena_bytes = ceiling};
    for (Starts& starts : starts_) {
      std::optional<std::vector<int64_t>> offsets = Sweep(&starts, &addresses);
      if (!offsets.has_value()) offsets = InRows(starts.problem(false), ejects, &addresses);
      if (!offsets.has_value()) return std::nullopt;
      packing.offsets.push_back(*std::move(offsets));
    }
    packing.runs = addresses.Runs();
    return packing;
  }

  // What is free at a birth stays free; what is free at a death was free before.
  std::optional<std::vector<int64_t>> Sweep(Starts* starts, PackAddresses* addresses) {
    for (const PackParts parts : {PackParts::kWherePagesDoNotDo, PackParts::kFirst}) {
      addresses->set_parts(parts);
      for (size_t k = 0; k < starts->size() && steps_ > 0; ++k) {
        for (const bool mirrored : {false, true}) {
          std::vector<int64_t> offsets = starts->Get(k, addresses->memory_bytes() - base_, &steps_);
          PackAddresses more = *addresses;
          if (SweepIntoPages(starts->problem(mirrored), base_, &offsets, &more, &steps_)) {
            *addresses = std::move(more);
            return offsets;
          }
        }
      }
    }
    return std::nullopt;
  }

  // All anew, whole pages counted and the rest packed. Ejections get half of their steps each time.
  std::optional<std::vector<int64_t>> InRows(const PackProblem& problem, bool ejects,
                                             PackAddresses* addresses) {
    const RowRules rules = {base_, page_, addresses->memory_bytes()};
    std::optional<std::vector<RowPlace>> rests = PackIntoRows(problem, rules, &steps_);
    if (!rests.has_value() && ejects && eject_steps_ > 0) {
      int64_t steps = eject_steps_ / 2;
      eject_steps_ -= steps;
      rests = EjectIntoRows(problem, rules, &steps);
    }
    if (!rests.has_value()) return std::nullopt;
    int64_t steps = kPlaceSteps;
    return PlaceOnPages(problem, base_, *rests, addresses, &steps);
  }

  const int64_t base_;
  const int64_t page_;
  const int64_t limit_;
  int64_t bound_;
  int64_t bytes_;  // in one piece
  int64_t steps_;
  int64_t eject_steps_;
  std::vector<Starts> starts_;
};

}  // namespace

int64_t PackPageBytes(std::string_view device, int64_t arena_bytes) {
  if (device == "cuda") return kLargePageBytes;
  int64_t bytes = kCpuPageBytes;
  while (bytes < kLargePageBytes && arena_bytes / bytes > kCpuPages) bytes *= 2;
  return bytes;
}

std::optional<PagedPacking> PackIntoPages(absl::Span<const PagedProblem> problems,
                                          const PageRules& rules) {
  return PagePacker(problems, rules).Run();
}

}  // namespace terrace
