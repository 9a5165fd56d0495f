// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/search_trial.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "coordinator/layout/rules.h"
#include "coordinator/planner/closed_form_error.h"
#include "coordinator/planner/estimate_length.h"
#include "coordinator/planner/fit.h"

namespace terrace {
namespace {

// Layouts that may fail to fit before only the smallest is tried.
constexpr int kMissesMax = 8;
// Once this many instructions were compiled, the trial ends with what fits.
constexpr int64_t kInstructionsMax = 120'000;
// What turns out longer than was guessed is given up while its graph is built, which takes about
// this share of the time of compiling that many instructions.
constexpr double kGraphShare = 1.0 / 3;
// Times that a layout is adjusted to what compiling it showed.
constexpr int kCorrectionsMax = 2;
// Up to here, one that is faster and does not fit is tried too, to tell what memory would be worth.
constexpr int64_t kCheapInstructions = 60'000;
// Closed forms of memory are good for this; what they say is larger is tried where nothing fits.
constexpr double kMayFit = 1.05;
// The smallest or shortest layouts of which one is to be compiled, where the first cannot be.
constexpr size_t kSmallestMax = 8;
// Layouts that are tried because what fits is slower than its closed form.
constexpr int kPromisingMax = 4;
// What is slower by closed form than the fastest that fits, by this factor, is not tried any more.
constexpr double kCloseEnough = 1.15;

}  // namespace

namespace {

// Of layouts with the same, closed forms are off by about the same.
std::string LikenessOf(const v1::Layout& layout) {
  std::string likeness = layout.schedule();
  if (!layout.has_offload()) return likeness;
  const v1::Offload& offload = layout.offload();
  for (const v1::TierShares* shares :
       {&offload.parameter(), &offload.gradient(), &offload.optimizer(), &offload.activation()}) {
    absl::StrAppend(&likeness, " ", Absl(TierName(FarthestTier(*shares))));
  }
  return absl::StrCat(likeness, " ", layout.zero_stage(), " ", layout.recompute());
}

}  // namespace

absl::Status OutOfTime() { return absl::DeadlineExceededError("the time for planning is over"); }

int64_t Instructions(const std::vector<v1::Program>& programs) {
  int64_t count = 0;
  for (const v1::Program& program : programs) {
    for (const v1::Sequence& sequence : program.sequences()) count += sequence.instructions_size();
  }
  return count;
}

absl::Status Trial::Try(const std::vector<const Proposal*>& proposals, LayoutKind kind, bool last,
                        double seconds_max) {
  std::vector<const Proposal*> shorter;
  for (const Proposal* one : proposals) {
    const int64_t passes = LayerPasses(one->layout, model_.config.layers);
    if (passes <= kShortLayerPasses) shorter.push_back(one);
  }
  RETURN_IF_ERROR(TryThose(shorter, kind, kMayFit, seconds_max));
  if (fits()) return TryFaster(shorter, kind);
  // What closed forms let in first, and then, where that does not fit, what they are likely to be
  // off by. What is farther over is left to TryInTurn().
  RETURN_IF_ERROR(TryThose(proposals, kind, kMayFit, seconds_max));
  if (!fits()) RETURN_IF_ERROR(TryThose(proposals, kind, kClosedFormLikely, seconds_max));
  if (fits()) return TryFaster(proposals, kind);
  return last ? TrySmallest(proposals, kind) : absl::OkStatus();
}

absl::Status Trial::TrySmallest(const std::vector<const Proposal*>& proposals, LayoutKind kind) {
  const auto smaller = [this](const Proposal* a, const Proposal* b) {
    const auto key = [this](const Proposal& one) {
      return std::tuple(!Affordable(one.layout), InfeasibleElsewhere(one.memory, one.layout, spec_),
                        one.memory.total());
    };
    return key(*a) < key(*b);
  };
  std::vector<const Proposal*> order = proposals;
  std::stable_sort(order.begin(), order.end(), smaller);
  for (size_t i = 0; i < order.size() && i < kSmallestMax; ++i) {
    ASSIGN_OR_RETURN(const std::optional<bool> fit, TryOne(*order[i], kind));
    if (fit.value_or(false)) fastest_estimate_ = order[i]->seconds;
    // One that cannot be compiled says nothing.
    if (fit.has_value() || !tried_.empty()) break;
  }
  return absl::OkStatus();
}

absl::Status Trial::TryInTurn(const std::vector<const Proposal*>& proposals, int64_t more) {
  options_.instructions_max = std::max(options_.instructions_max, instructions_ + more);
  for (const Proposal* one : proposals) {
    ASSIGN_OR_RETURN(const std::optional<bool> fit, TryOne(*one, LayoutKindOf(one->layout)));
    if (!fit.value_or(false)) continue;
    fastest_estimate_ = std::min(fastest_estimate_, one->seconds);
    break;
  }
  return absl::OkStatus();
}

absl::Status Trial::TryPromising(std::vector<const Proposal*> proposals, int64_t more) {
  const int64_t most = instructions_ + more;
  std::stable_sort(proposals.begin(), proposals.end(),
                   [](const Proposal* a, const Proposal* b) { return a->seconds < b->seconds; });
  int tries = 0;
  for (const Proposal* one : proposals) {
    double fastest = 1e300;
    for (const TriedLayout& tried : tried_) {
      if (tried.evaluated.fits)
        fastest = std::min(fastest, tried.evaluated.simulation.step_seconds);
    }
    if (one->seconds >= WorthIt(fastest) || tries >= kPromisingMax) break;
    if (instructions_ + InstructionsFor(one->layout) * 2 > most) continue;
    ASSIGN_OR_RETURN(const std::optional<bool> fit, TryOne(*one, LayoutKindOf(one->layout)));
    tries += fit.has_value();
  }
  return absl::OkStatus();
}

absl::Status Trial::TryAny(const std::vector<const Proposal*>& proposals) {
  if (!tried_.empty() || all_tried_ || proposals.empty()) return absl::OkStatus();
  const auto shorter = [this](const Proposal* a, const Proposal* b) {
    return LengthOf(a->layout) < LengthOf(b->layout);
  };
  std::vector<const Proposal*> order = proposals;
  std::stable_sort(order.begin(), order.end(), shorter);
  must_ = true;
  absl::Status tried;
  // One that cannot be compiled says nothing.
  for (size_t i = 0; i < std::min(order.size(), kSmallestMax) && tried.ok() && tried_.empty();
       ++i) {
    tried = TryOne(*order[i], LayoutKindOf(order[i]->layout)).status();
  }
  must_ = false;
  return tried;
}

absl::Status Trial::TryThose(const std::vector<const Proposal*>& proposals, LayoutKind kind,
                             double part, double seconds_max) {
  int misses = 0, fitting = 0;
  for (const Proposal* proposal : proposals) {
    if (fitting >= options_.fitting_max || proposal->seconds > seconds_max) break;
    if (misses >= kMissesMax || (fits() && instructions_ > kInstructionsMax)) break;
    if (!MayFit(*proposal, part)) continue;
    ASSIGN_OR_RETURN(const std::optional<bool> fit, TryOne(*proposal, kind));
    if (!fit.has_value()) continue;
    if (*fit && fitting == 0) seconds_max = std::min(seconds_max, kCloseEnough * proposal->seconds);
    *fit ? ++fitting : ++misses;
    if (*fit) fastest_estimate_ = std::min(fastest_estimate_, proposal->seconds);
  }
  return absl::OkStatus();
}

absl::Status Trial::TryFaster(const std::vector<const Proposal*>& proposals, LayoutKind kind) {
  const bool faster = !proposals.empty() && proposals.front()->memory.total() > ArenaMax();
  const bool tried_any = std::any_of(tried_.begin(), tried_.end(), [kind](const TriedLayout& one) {
    return one.kind == kind && one.evaluated.fits;
  });
  if (!faster || !tried_any || options_.fitting_max == 1 || instructions_ > kCheapInstructions) {
    return absl::OkStatus();
  }
  return TryOne(*proposals.front(), kind, /*adjust=*/false).status();
}

bool Trial::fits() const {
  return std::any_of(tried_.begin(), tried_.end(),
                     [](const TriedLayout& one) { return one.evaluated.fits; });
}

absl::StatusOr<std::optional<bool>> Trial::TryOne(const Proposal& proposal, LayoutKind kind,
                                                  bool adjust) {
  std::vector<int64_t> targets;
  const bool movable = adjust && !must_ && proposal.way.has_value();
  std::optional<v1::Layout> layout = Fitted(proposal, &targets);
  for (int corrections = 0; layout.has_value() && !Known(*layout); ++corrections) {
    if (!Affordable(*layout)) {
      all_tried_ = false;
      break;
    }
    const bool adjustable =
        adjust && !must_ && corrections < kCorrectionsMax && MayRecompute(*layout);
    absl::StatusOr<Evaluated> one = Compiled(*layout);
    if (absl::IsResourceExhausted(one.status())) {
      all_tried_ = false;
      break;
    }
    if (absl::IsInvalidArgument(one.status())) {  // another layout may be compiled
      if (refusal_.ok()) refusal_ = one.status();
      return std::optional<bool>();
    }
    RETURN_IF_ERROR(one.status());
    Learn(*one);
    layout.reset();
    if (!one->fits && adjustable) layout = Corrected(*one, &targets);
    if (!one->fits && !layout.has_value() && movable && corrections < kCorrectionsMax) {
      layout = MovedMore(*one, *proposal.way);
    }
    if (layout.has_value() && Affordable(*layout)) continue;
    if (layout.has_value()) all_tried_ = false;
    if (one->fits) RETURN_IF_ERROR(SimulateStep(budget_.profile, &*one));
    const bool fit = one->fits;
    tried_.push_back({*std::move(one), kind});
    return std::optional<bool>(fit);
  }
  return std::optional<bool>();
}

absl::StatusOr<Evaluated> Trial::Compiled(const v1::Layout& layout) {
  if (options_.in_time && !options_.in_time()) return OutOfTime();
  const bool limited = !must_ && !fits();
  const int64_t most =
      limited ? std::max<int64_t>(1, options_.instructions_max - instructions_) : 0;
  absl::StatusOr<Evaluated> one = CompileLayout(spec_, model_, budget_, layout, most);
  double& longer_by = longer_by_.try_emplace(layout.has_offload(), 1).first->second;
  if (absl::IsResourceExhausted(one.status())) {
    instructions_ += static_cast<int64_t>(kGraphShare * static_cast<double>(most));
    longer_by = std::max(longer_by, static_cast<double>(most) / LengthOf(layout));
  }
  if (!one.ok()) return one;
  const int64_t instructions = Instructions(one->programs);
  instructions_ += instructions;
  longer_by = static_cast<double>(instructions) / LengthOf(layout);
  return one;
}

double Trial::LengthOf(const v1::Layout& layout) const {
  return std::max(1.0, ProgramLength(memory_.model(), layout));
}

int64_t Trial::InstructionsFor(const v1::Layout& layout) const {
  const auto seen = longer_by_.find(layout.has_offload());
  return static_cast<int64_t>((seen == longer_by_.end() ? 1 : seen->second) * LengthOf(layout));
}

bool Trial::Affordable(const v1::Layout& layout) const {
  return must_ || fits() || instructions_ + InstructionsFor(layout) <= options_.instructions_max;
}

bool Trial::MayRecompute(const v1::Layout& layout) const {
  return spec_.layout().recompute().empty() && spec_.layout().recompute_layers().empty() &&
         layout.recompute() != "sqrt" && budget_.device_memory_bytes > 0;
}

std::optional<v1::Layout> Trial::Fitted(const Proposal& proposal,
                                        std::vector<int64_t>* targets) const {
  auto target = static_cast<double>(ArenaMax());
  if (const double off = OffBy(proposal.layout); off > 0) target /= off;
  targets->assign(proposal.layout.pipeline_parallel(), static_cast<int64_t>(target));
  if (proposal.to_fit) return WithRecompute(memory_, proposal.layout, *targets);
  const bool elsewhere = proposal.way.has_value() && target < static_cast<double>(ArenaMax());
  if (!elsewhere) return proposal.layout;
  ArenaLimits limits = Limits();
  limits.device_bytes = static_cast<int64_t>(target);
  return WithOffload(memory_, proposal.layout, spec_.layout().offload(), *proposal.way, limits);
}

std::optional<v1::Layout> Trial::MovedMore(const Evaluated& one, OffloadWay way) const {
  const MemoryEstimate estimate = memory_.Memory(one.layout);
  const TierLimits tiers = LimitsOf(spec_);
  // The limit as the closed form would say it of such a layout: it may be off either way.
  const auto as_estimated = [](int64_t bytes, int64_t limit, int64_t estimated) {
    return limit == 0 ? 0 : std::max<int64_t>(1, estimated + limit - bytes);
  };
  const ArenaLimits limits = {
      .device_bytes = as_estimated(one.device_bytes, budget_.device_memory_bytes, estimate.total()),
      .host_bytes = as_estimated(one.host_bytes, tiers.host_bytes, estimate.host_bytes),
      .nvme_bytes = as_estimated(one.nvme_bytes, tiers.nvme_bytes, estimate.nvme_bytes)};
  return WithOffload(memory_, one.layout, spec_.layout().offload(), way, limits);
}

ArenaLimits Trial::Limits() const {
  const TierLimits tiers = LimitsOf(spec_);
  return {.device_bytes = budget_.device_memory_bytes == 0 ? 0 : std::max<int64_t>(1, ArenaMax()),
          .host_bytes = tiers.host_bytes,
          .nvme_bytes = tiers.nvme_bytes};
}

std::optional<v1::Layout> Trial::Corrected(const Evaluated& one,
                                           std::vector<int64_t>* targets) const {
  const TierLimits tiers = LimitsOf(spec_);
  const bool elsewhere = (tiers.host_bytes > 0 && one.host_bytes > tiers.host_bytes) ||
                         (tiers.nvme_bytes > 0 && one.nvme_bytes > tiers.nvme_bytes);
  if (elsewhere) return std::nullopt;  // computing again frees only the device
  const std::vector<MemoryEstimate> estimates = memory_.Stages(one.layout);
  for (size_t stage = 0; stage < one.programs.size(); ++stage) {
    const int64_t over = BytesOf(one.programs[stage], v1::DEVICE) - budget_.device_memory_bytes;
    if (over > 0) (*targets)[stage] = estimates[stage].total() - over;
  }
  std::optional<v1::Layout> next = WithRecompute(memory_, one.layout, *targets);
  constexpr double kSlightly = 1.1;
  const bool slightly = static_cast<double>(one.device_bytes) <=
                        kSlightly * static_cast<double>(budget_.device_memory_bytes);
  if (!next.has_value() && slightly) {  // whole blocks may do, whatever the closed form says
    next = one.layout;
    next->clear_recompute_layers();
    next->set_recompute("block");
  }
  if (next.has_value() && next->SerializeAsString() == one.layout.SerializeAsString()) {
    next.reset();
  }
  return next;
}

int64_t Trial::ArenaMax() const {
  // Far above any device, and far below what overflows.
  constexpr int64_t kUnlimited = int64_t{1} << 60;
  return budget_.device_memory_bytes == 0 ? kUnlimited
                                          : budget_.device_memory_bytes - ExternalBytes(budget_);
}

bool Trial::MayFit(const Proposal& proposal, double part) const {
  if (InfeasibleElsewhere(proposal.memory, proposal.layout, spec_)) return false;
  // Those over what other tiers have come second, as on the device: each miss costs what a hit
  // does.
  if (part <= kMayFit && UnlikelyElsewhere(proposal.memory, spec_)) return false;
  if (budget_.device_memory_bytes == 0 || proposal.to_fit || proposal.way.has_value()) return true;
  const double bytes = static_cast<double>(proposal.memory.total());
  const double off = OffBy(proposal.layout);
  if (off > 0) return bytes * off <= static_cast<double>(ArenaMax());
  const double slack = part > kMayFit ? static_cast<double>(kClosedFormSlackBytes) : 0;
  return bytes - slack <= part * static_cast<double>(ArenaMax());
}

void Trial::Learn(const Evaluated& one) {
  const auto arenas = static_cast<double>(one.device_bytes - ExternalBytes(budget_));
  const auto estimate = static_cast<double>(memory_.Memory(one.layout).total());
  off_by_[LikenessOf(one.layout)] = arenas / std::max(1.0, estimate);
}

double Trial::OffBy(const v1::Layout& layout) const {
  const auto found = off_by_.find(LikenessOf(layout));
  return found == off_by_.end() ? 0 : found->second;
}

bool Trial::Known(const v1::Layout& layout) const {
  return std::any_of(tried_.begin(), tried_.end(), [&](const TriedLayout& one) {
    return one.evaluated.layout.SerializeAsString() == layout.SerializeAsString();
  });
}

}  // namespace terrace
