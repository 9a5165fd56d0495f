// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/compiler/pack_eject.h"
#include "coordinator/compiler/pack_fits.h"
#include "coordinator/compiler/pack_orders.h"
#include "coordinator/compiler/pack_problem.h"
#include "coordinator/compiler/pack_search.h"

namespace terrace {
namespace {

// One part in this many over the lower bound is good enough to stop: 0.5 %.
constexpr int64_t kGoodEnoughPart = 200;
// And where there is room for it and more items than are packed in no time, of the whole arena:
// 1 %; 2 % once the orders of the portfolio are through, of so many items the first few of them.
constexpr int64_t kRoomPart = 100;
constexpr int64_t kRoomLaterPart = 50;
constexpr size_t kRoomItems = 8192;
// What is near, where layouts are only compared, and how many orders that may cost.
constexpr int64_t kNearPart = 30;
constexpr size_t kQuickOrders = 3;
// One part in this many over it is far off. Where there are as few items as in problems made to be
// hard, a long search still ends.
constexpr int64_t kFarOffPart = 32;
constexpr size_t kFarOffItems = 512;

// Improving: this many of the best orders, each so many times, while that places at most so many
// items in all (about a microsecond each).
constexpr size_t kImprovedOrders = 6;
constexpr int kImproveRounds = 6;
constexpr int64_t kImprovePlacements = 400'000;

// Holes of several choices, from one part in this many over the bound on (0.8 %): so many items
// placed in all (about half a microsecond each).
constexpr int64_t kChooseHolesPart = 125;
constexpr int64_t kOrdersFits = 200'000;
constexpr int64_t kFullFits = 1'200'000;
// Where one part in so many is left after that, other ceilings (in ten-thousandths over the bound):
// which holes are the highest or the tightest, and what goes first next time, depends on where the
// ceiling is, and no ceiling is the best one for all programs.
constexpr int64_t kOtherCeilingsPart = 100;
constexpr int64_t kOtherCeilings[] = {70, 95, 125};
constexpr int64_t kOtherFits = 400'000;

// Ejections: where more than one part in so many of the whole arena, and more than so many bytes,
// are left after that. The ceiling is so many ten-thousandths of it over the bound. Where nothing
// is found below it, ceilings half way between what was not and what is, so many times while they
// are one part in so many of the whole arena apart.
constexpr int64_t kMuchPart = 100;
constexpr int64_t kMuchBytes = int64_t{1} << 20;
constexpr int64_t kEjectCeiling = 98;
constexpr int64_t kEjectSteps = 170'000'000;
constexpr int kEjectHalves = 3;
constexpr int64_t kEjectHalfPart = 400;
constexpr int64_t kEjectHalfSteps = 28'000'000;

// Ejections and the search: for so many items, because memory grows with the pairs that meet.
constexpr size_t kSearchItems = 4096;
// Its steps (about 0.6 ns each) are worth what there is to gain.
constexpr int64_t kSearchBaseSteps = int64_t{16} << 20;
constexpr int64_t kSearchStepsPerByte = 32768;
constexpr int64_t kSearchSteps = int64_t{1} << 30;
constexpr int64_t kFarOffSearchSteps = int64_t{8} << 30;

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

// One problem on its way through the tiers; each leaves the best placement so far at least as good.
class Packer {
 public:
  Packer(absl::Span<const PackBuffer> buffers, PackEffort effort, int64_t beside_bytes,
         const PackRoom& room)
      : problem_(MakePackProblem(buffers)),
        bound_(problem_.lower_bound_bytes),
        whole_bound_(beside_bytes + bound_),
        effort_(effort),
        room_(room),
        good_enough_(GoodEnough() / kPackAlignment * kPackAlignment) {}

  Packing Run() {
    TryPortfolio();
    if (effort_ != PackEffort::kQuick && !HasRoom()) {
      ImproveOrders();
      ChooseHoles();
    }
    if (effort_ == PackEffort::kFull && !HasRoom()) {
      MoveCeiling();
      Eject();
      Search();
    }
    return {std::move(best_.offsets), best_.arena_bytes, bound_};
  }

 private:
  struct Tried {
    std::vector<int> order;
    PackPlacement placement;
  };

  int64_t GoodEnoughPart() const {
    return effort_ == PackEffort::kQuick ? kNearPart : kGoodEnoughPart;
  }

  int64_t GoodEnough() const {
    const int64_t near = bound_ + bound_ / GoodEnoughPart();
    return effort_ == PackEffort::kQuick ? near : std::max(near, Room(kRoomPart));
  }

  // What may be taken of the room there is, one part in so many over the bound; 0: it is not known.
  int64_t Room(int64_t part) const {
    if (room_.only_to_fit) return room_.bytes;
    if (problem_.items.size() <= kSoonPacked) return 0;
    return std::min(room_.bytes, bound_ + whole_bound_ / part);
  }

  // Nothing is gained by needing less.
  bool HasRoom() const { return best_.arena_bytes <= Room(kRoomLaterPart); }

  bool Done() const { return !best_.offsets.empty() && best_.arena_bytes <= good_enough_; }

  void Offer(const PackPlacement& placement) {
    if (best_.offsets.empty() || placement.arena_bytes < best_.arena_bytes) best_ = placement;
  }

  void TryPortfolio() {
    for (const PackStrategy& strategy : PackPortfolio()) {
      if (effort_ == PackEffort::kQuick && tried_.size() >= kQuickOrders) return;
      Tried tried = {.order = MakePackOrder(problem_, strategy)};
      tried.placement = PlaceInOrder(problem_, tried.order);
      Offer(tried.placement);
      if (Done()) return;
      tried_.push_back(std::move(tried));
      if (problem_.items.size() > kRoomItems && tried_.size() >= kQuickOrders && HasRoom()) return;
    }
  }

  // What ended up too high goes first next time. This often goes down only after it went up.
  void ImproveOrders() {
    if (Done()) return;
    std::stable_sort(tried_.begin(), tried_.end(), [](const Tried& a, const Tried& b) {
      return a.placement.arena_bytes < b.placement.arena_bytes;
    });
    int64_t placements_left = kImprovePlacements;
    for (size_t k = 0; k < std::min(kImprovedOrders, tried_.size()); ++k) {
      Tried& tried = tried_[k];
      for (int round = 0; round < kImproveRounds; ++round) {
        placements_left -= static_cast<int64_t>(problem_.items.size());
        if (placements_left < 0) return;
        std::stable_partition(tried.order.begin(), tried.order.end(), [&](int i) {
          return tried.placement.offsets[i] + problem_.items[i].bytes > good_enough_;
        });
        tried.placement = PlaceInOrder(problem_, tried.order);
        Offer(tried.placement);
        if (Done()) return;
      }
    }
  }

  void ChooseHoles() {
    if (Done()) return;
    const PackPlacement placement =
        PackBelow(problem_, good_enough_, effort_ == PackEffort::kFull ? kFullFits : kOrdersFits);
    if (!placement.offsets.empty()) Offer(placement);
  }

  void MoveCeiling() {
    for (const int64_t ceiling : kOtherCeilings) {
      if (best_.arena_bytes <= bound_ + bound_ / kOtherCeilingsPart) return;
      const int64_t bytes = (bound_ + bound_ / 10'000 * ceiling) / kPackAlignment * kPackAlignment;
      const PackPlacement placement = PackBelow(problem_, bytes, kOtherFits);
      if (!placement.offsets.empty()) Offer(placement);
    }
  }

  // What no order reaches. True when something lies below the ceiling.
  bool EjectBelow(int64_t ceiling_bytes, int64_t steps) {
    const PackPlacement placement = PackByEjection(problem_, ceiling_bytes, steps);
    if (!placement.offsets.empty()) Offer(placement);
    return !placement.offsets.empty();
  }

  void Eject() {
    if (problem_.items.size() > kSearchItems) return;
    if (best_.arena_bytes - bound_ <= std::max(whole_bound_ / kMuchPart, kMuchBytes)) return;
    int64_t too_low = bound_ + whole_bound_ / 10'000 * kEjectCeiling;
    if (EjectBelow(too_low, kEjectSteps)) return;
    for (int k = 0; k < kEjectHalves; ++k) {
      if (best_.arena_bytes - too_low < 2 * (whole_bound_ / kEjectHalfPart)) return;
      const int64_t middle = (too_low + best_.arena_bytes) / 2;
      if (!EjectBelow(middle, kEjectHalfSteps)) too_low = middle;
    }
  }

  int64_t SearchBudget() const {
    const int64_t gain = best_.arena_bytes - bound_;
    const bool far_off = gain > bound_ / kFarOffPart && problem_.items.size() <= kFarOffItems;
    return std::min(kSearchBaseSteps + gain * kSearchStepsPerByte,
                    far_off ? kFarOffSearchSteps : kSearchSteps);
  }

  // The bound itself first, then good enough, then by halves between what is too low (or was not
  // found in time) and what is known to do.
  int64_t NextCapacity(int64_t too_low) const {
    if (too_low < bound_) return bound_;
    if (too_low < good_enough_) return good_enough_;
    const int64_t middle = (too_low + best_.arena_bytes) / 2;
    return std::max(middle / kPackAlignment * kPackAlignment, too_low + kPackAlignment);
  }

  void Search() {
    if (Done() || problem_.items.size() > kSearchItems) return;
    PackSearch search(problem_);
    int64_t steps = SearchBudget();
    int64_t too_low = bound_ - kPackAlignment;
    while (!Done() && too_low + kPackAlignment < best_.arena_bytes) {
      const int64_t capacity = NextCapacity(too_low);
      const int64_t granted = capacity == good_enough_ ? steps / 2 : steps / 4;
      if (granted == 0) return;
      int64_t left = granted;
      if (search.Fit(capacity, &left, &best_) != FitVerdict::kFits) too_low = capacity;
      steps -= granted - left;
    }
  }

  const PackProblem problem_;
  const int64_t bound_;
  const int64_t whole_bound_;  // of the arena
  const PackEffort effort_;
  const PackRoom room_;
  const int64_t good_enough_;
  std::vector<Tried> tried_;  // all of the portfolio, unless one was good enough
  PackPlacement best_;
};

}  // namespace

absl::StatusOr<Packing> Pack(absl::Span<const PackBuffer> buffers, PackEffort effort,
                             int64_t beside_bytes, const PackRoom& room) {
  RETURN_IF_ERROR(CheckBuffers(buffers));
  if (buffers.empty()) return Packing{};
  return Packer(buffers, effort, beside_bytes, room).Run();
}

}  // namespace terrace
