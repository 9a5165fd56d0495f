// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack_repair.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace terrace {
namespace {

constexpr int64_t kLeftOut = -1;
constexpr int kSnapshotSlots = 32;
constexpr int kStartRounds = 2;
// A try takes up at most so many items: many small ones get further than few large ones.
constexpr size_t kMostTaken = 200;
// One part in so many more may be left out after a try than before, and than in the best state.
constexpr int64_t kWorsePart = 50;
constexpr int64_t kFarFromBestPart = 7;

// 64 x log2, linear between powers of two: integers give the same order on every machine.
int64_t Log64(int64_t value) {
  const int width = std::bit_width(static_cast<uint64_t>(value)) - 1;
  const int64_t fraction = width >= 6 ? value >> (width - 6) : value << (6 - width);
  return 64 * width + fraction - 64;
}

}  // namespace

PackRepair::PackRepair(const PackProblem& problem, int64_t capacity_bytes)
    : problem_(problem),
      capacity_(capacity_bytes),
      by_birth_(problem.items.size()),
      born_before_(problem.slots + 1),
      snapshot_(problem.slots / kSnapshotSlots + 1) {
  std::iota(by_birth_.begin(), by_birth_.end(), 0);
  std::stable_sort(by_birth_.begin(), by_birth_.end(),
                   [&](int a, int b) { return problem.items[a].begin < problem.items[b].begin; });
  int born = 0;
  for (int s = 0; s <= problem.slots; ++s) {
    while (born < static_cast<int>(by_birth_.size()) && problem.items[by_birth_[born]].begin < s) {
      ++born;
    }
    born_before_[s] = born;
  }
  for (int i : by_birth_) {
    const PackItem& item = problem.items[i];
    int k = (item.begin + kSnapshotSlots - 1) / kSnapshotSlots;
    for (; k * kSnapshotSlots < item.end; ++k) snapshot_[k].push_back(i);
  }
  for (const PackItem& item : problem.items) {
    const double root = std::sqrt(static_cast<double>(item.life()));  // exact to the bit by IEEE
    weight_.push_back(item.bytes / kPackAlignment * static_cast<int64_t>(16 * root));
  }
}

bool PackRepair::Run(int64_t* steps, PackPlacement* placement) {
  steps_left_ = *steps;
  state_ = 0x9E3779B97F4A7C15u;
  ChooseStart();
  while (!left_out_.empty() && steps_left_ > 0) Try();
  *steps = std::max<int64_t>(0, steps_left_);
  if (!left_out_.empty()) return false;
  placement->offsets = offsets_;
  placement->arena_bytes = 0;
  for (size_t i = 0; i < offsets_.size(); ++i) {
    placement->arena_bytes =
        std::max(placement->arena_bytes, offsets_[i] + problem_.items[i].bytes);
  }
  return true;
}

uint64_t PackRepair::Random(uint64_t below) {  // xorshift64
  state_ ^= state_ << 13;
  state_ ^= state_ >> 7;
  state_ ^= state_ << 17;
  return (state_ >> 11) % below;
}

template <typename Visit>
void PackRepair::VisitAlive(int begin, int end, Visit visit) {
  const int k = begin / kSnapshotSlots;
  for (int i : snapshot_[k]) {
    if (problem_.items[i].end > begin) visit(i);
  }
  const int first = born_before_[std::min(k * kSnapshotSlots + 1, problem_.slots)];
  for (int b = first; b < born_before_[end]; ++b) {
    if (problem_.items[by_birth_[b]].end > begin) visit(by_birth_[b]);
  }
  steps_left_ -= static_cast<int64_t>(snapshot_[k].size()) + born_before_[end] - first;
}

// Puts an item into a gap between what it meets; false when there is none.
bool PackRepair::Place(int item, Fit fit) {
  const PackItem& it = problem_.items[item];
  neighbours_.clear();
  VisitAlive(it.begin, it.end, [&](int j) {
    if (offsets_[j] != kLeftOut) {
      neighbours_.push_back({offsets_[j], offsets_[j] + problem_.items[j].bytes, j});
    }
  });
  std::sort(neighbours_.begin(), neighbours_.end(),
            [](const Placed& a, const Placed& b) { return a.begin < b.begin; });
  steps_left_ -= 4 * static_cast<int64_t>(neighbours_.size());
  int64_t best_contact = -1;
  int64_t offset = kLeftOut;
  const auto consider = [&](int64_t candidate) {
    const int64_t contact = fit == Fit::kLowest ? 0 : Contact(item, candidate);
    if (contact <= best_contact) return;
    best_contact = contact;
    offset = candidate;
  };
  int64_t floor = 0;
  for (size_t k = 0; k <= neighbours_.size(); ++k) {
    const int64_t ceiling = k < neighbours_.size() ? neighbours_[k].begin : capacity_;
    if (ceiling - floor >= it.bytes) {
      consider(floor);
      if (fit == Fit::kLowest) break;
      consider(ceiling - it.bytes);
    }
    if (k < neighbours_.size()) floor = std::max(floor, neighbours_[k].end);
  }
  if (offset == kLeftOut) return false;
  offsets_[item] = offset;
  return true;
}

int64_t PackRepair::Contact(int item, int64_t offset) const {
  const PackItem& it = problem_.items[item];
  const int64_t top = offset + it.bytes;
  int64_t contact = (offset == 0 ? it.life() : 0) + (top == capacity_ ? it.life() : 0);
  for (const Placed& placed : neighbours_) {
    if (placed.end != offset && placed.begin != top) continue;
    const PackItem& other = problem_.items[placed.item];
    contact += std::min(it.end, other.end) - std::max(it.begin, other.begin);
  }
  return contact;
}

int64_t PackRepair::WeightOf(const std::vector<int>& items) const {
  return std::accumulate(items.begin(), items.end(), int64_t{0},
                         [&](int64_t sum, int i) { return sum + weight_[i]; });
}

// Places all items anew; returns what does not fit.
std::vector<int> PackRepair::Construct(const std::vector<int>& order, Fit fit) {
  offsets_.assign(problem_.items.size(), kLeftOut);
  std::vector<int> left_out;
  for (int item : order) {
    if (!Place(item, fit)) left_out.push_back(item);
  }
  return left_out;
}

void PackRepair::Offer(std::vector<int> left_out) {
  const int64_t weight = WeightOf(left_out);
  if (!best_offsets_.empty() && weight >= best_weight_) return;
  best_offsets_ = offsets_;
  best_left_out_ = std::move(left_out);
  best_weight_ = weight;
}

// By life, longest first, that leaves little out: large short-lived items as a rule. These go
// earlier the second time.
void PackRepair::ChooseStart() {
  const int items = static_cast<int>(problem_.items.size());
  best_offsets_.clear();
  for (const Fit fit : {Fit::kLowest, Fit::kContact}) {
    for (const bool classes : {false, true}) {
      std::vector<int64_t> lives;
      for (const PackItem& item : problem_.items) lives.push_back(Log64(item.life()));
      for (int round = 0; round < kStartRounds; ++round) {
        std::vector<int> order(items);
        std::iota(order.begin(), order.end(), 0);
        const auto key = [&](int i) {
          const PackItem& item = problem_.items[i];
          return classes ? std::array<int64_t, 3>{-(lives[i] / 64), item.begin, -item.bytes}
                         : std::array<int64_t, 3>{-lives[i], -item.bytes, item.begin};
        };
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return key(a) < key(b); });
        std::vector<int> left_out = Construct(order, fit);
        for (int i : left_out) lives[i] += 64;
        Offer(std::move(left_out));
      }
    }
  }
  Restore();
}

void PackRepair::Restore() {
  offsets_ = best_offsets_;
  left_out_ = best_left_out_;
  left_weight_ = best_weight_;
}

// Around the life of `item`, or at one moment of it; a band of offsets, sometimes all.
PackRepair::Box PackRepair::ChooseBox(int item) {
  const PackItem& it = problem_.items[item];
  const int life = std::max(2, it.life());
  const auto kind = Random(4);
  const auto part = static_cast<int64_t>(Random(1000));
  const auto reach = life * part * (kind == 3 ? 3 : 1) / 1000;
  Box box = {.begin = it.begin - static_cast<int>(Random(reach + 1)),
             .end = it.end + static_cast<int>(Random(reach + 1)),
             .longest = problem_.slots - 1};
  if (kind == 0) box.longest = life * static_cast<int>(1 + Random(8));
  if (kind == 3) box.longest = static_cast<int>(life * (500 + part) / 1000);
  if (kind == 2) {
    const int moment = it.begin + static_cast<int>(Random(life));
    box.begin = moment - static_cast<int>(reach / 4) - 1;
    box.end = moment + static_cast<int>(reach / 4) + 1;
  }
  box.begin = std::clamp(box.begin, 0, problem_.slots - 1);
  box.end = std::clamp(box.end, box.begin + 1, problem_.slots);
  const int64_t band = it.bytes + it.bytes * part / 500 + capacity_ / (int64_t{4} << Random(4));
  const bool all = kind == 0 && Random(2) == 0;
  const int64_t height = all ? capacity_ : std::min(capacity_, band);
  box.low = static_cast<int64_t>(Random(capacity_ - height + 1));
  box.high = box.low + height;
  return box;
}

// False, and nothing taken, when there is nothing or too much in the box. What lives all the time
// stays.
bool PackRepair::TakeUp(const Box& box) {
  taken_.clear();
  VisitAlive(box.begin, box.end, [&](int j) {
    const PackItem& item = problem_.items[j];
    if (offsets_[j] == kLeftOut || item.life() > box.longest || item.life() >= problem_.slots) {
      return;
    }
    if (offsets_[j] < box.high && box.low < offsets_[j] + item.bytes) taken_.push_back(j);
  });
  if (taken_.empty() || taken_.size() > kMostTaken) return false;
  taken_offsets_.clear();
  for (int j : taken_) taken_offsets_.push_back(std::exchange(offsets_[j], kLeftOut));
  return true;
}

// By life, size, both, or size and half of life, more or less shaken; `item` often earlier.
void PackRepair::KeyTaken(const Box& box, int item) {
  const auto mode = Random(4);
  const auto noise = static_cast<int64_t>(Random(4)) * 51;
  const auto bonus = static_cast<int64_t>(Random(3)) * 128;
  fit_ = Random(2) == 0 ? Fit::kLowest : Fit::kContact;
  const auto key = [&](int i) {
    const int64_t life = Log64(problem_.items[i].life() + 1);
    const int64_t size = Log64(problem_.items[i].bytes);
    const int64_t twice = mode == 0   ? 2 * life + size / 5
                          : mode == 1 ? 2 * size
                          : mode == 2 ? 2 * (life + size)
                                      : life + 2 * size;
    return -(twice / 2 + static_cast<int64_t>(Random(noise + 1)));
  };
  keyed_.clear();
  still_out_.clear();
  still_weight_ = 0;
  for (int j : taken_) keyed_.push_back({key(j), j});
  for (int j : left_out_) {
    const PackItem& other = problem_.items[j];
    if (other.begin < box.end && box.begin < other.end) {
      keyed_.push_back({key(j) - (j == item ? bonus : 0), j});
    } else {
      still_out_.push_back(j);
      still_weight_ += weight_[j];
    }
  }
  std::sort(keyed_.begin(), keyed_.end());
}

void PackRepair::PutBack() {
  for (const Keyed& keyed : keyed_) offsets_[keyed.item] = kLeftOut;
  for (size_t k = 0; k < taken_.size(); ++k) offsets_[taken_[k]] = taken_offsets_[k];
}

void PackRepair::Try() {
  const int item = left_out_[Random(left_out_.size())];
  const Box box = ChooseBox(item);
  if (!TakeUp(box)) return;
  KeyTaken(box, item);
  const int64_t most =
      left_weight_ + left_weight_ / kWorsePart * static_cast<int64_t>(Random(1000)) / 1000;
  for (const Keyed& keyed : keyed_) {
    if (Place(keyed.item, fit_)) continue;
    still_out_.push_back(keyed.item);
    still_weight_ += weight_[keyed.item];
    if (still_weight_ > most) return PutBack();
  }
  std::swap(left_out_, still_out_);
  left_weight_ = still_weight_;
  if (left_weight_ < best_weight_) {
    best_offsets_ = offsets_;
    best_left_out_ = left_out_;
    best_weight_ = left_weight_;
  } else if (left_weight_ > best_weight_ + best_weight_ / kFarFromBestPart) {
    Restore();
  }
}

}  // namespace terrace
