// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "coordinator/planner/planner.h"
#include "coordinator/prepare/layout_text.h"
#include "coordinator/prepare/variations.h"
#include "coordinator/prepare/what_fits.h"

namespace terrace {
namespace {

// What was spent of the limits.
struct Cost {
  ChangeLimits limits;
  SearchCost spent;
  std::vector<std::string> not_tried;  // in words

  // So that what they leave can be tried, closed forms alone may cost half of it.
  bool asked_enough() const { return spent.compared > limits.compared / 2; }
  // With so little left nothing more is tried in earnest.
  bool too_much() const { return spent.compared > limits.compared || left() < least() || over(); }
  bool over() const { return limits.in_time && !limits.in_time(); }
  int64_t left() const { return std::max<int64_t>(0, limits.instructions - spent.instructions); }
  // Of one change among many: at least what a sample of 405B with all of it on NVMe has.
  int64_t share() const {
    constexpr int64_t kShare = 130'000;
    return std::min(left(), std::max(kShare, limits.instructions / 6));
  }

 private:
  int64_t least() const { return limits.instructions / 16; }
};

Search SearchOf(const v1::JobSpec& spec) {
  return OffersTiers(spec) ? Search::kTiers : Search::kAll;
}

// Whether some layout of the spec is worth compiling, by closed form.
absl::StatusOr<bool> AnyIsHopeful(const v1::JobSpec& spec, const Budget& budget, Cost* cost) {
  ASSIGN_OR_RETURN(const Model model, ReadModel(spec));
  return AnyHopeful(spec, model, budget, SearchOf(spec), &cost->spent.compared);
}

// Of what is open, that which takes the least memory is asked.
bool Hopeful(const v1::JobSpec& spec, const Budget& budget, Cost* cost) {
  v1::JobSpec smallest = spec;
  v1::LayoutSpec* layout = smallest.mutable_layout();
  if (layout->micro_batch() == 0) layout->set_micro_batch(1);
  if (layout->schedule().empty() && layout->interleave() <= 1) layout->set_schedule("1f1b");
  absl::StatusOr<bool> hopeful = AnyIsHopeful(smallest, budget, cost);
  // What is pinned may contradict it.
  if (!hopeful.ok()) hopeful = AnyIsHopeful(spec, budget, cost);
  return hopeful.ok() && *hopeful;
}

// With more or less of its layout open, and farther and farther away. What releases the most is
// asked first; an offload that was pinned is kept only by what releases less.
bool HopefulAnyhow(const Variation& variation, const Budget& budget, Cost* cost) {
  const auto any = [&](const std::vector<Variation>& variations) {
    return std::any_of(variations.rbegin(), variations.rend(),
                       [&](const Variation& one) { return Hopeful(one.spec, budget, cost); });
  };
  return any(WithLayoutReleased(variation)) || any(WithOffload(variation));
}

// "a", "a with b", "a with b and c".
std::string InWords(const std::vector<std::string>& changes) {
  if (changes.size() < 2) return absl::StrJoin(changes, "");
  return absl::StrCat(changes[0], " with ",
                      absl::StrJoin(changes.begin() + 1, changes.end(), " and "));
}

// Index of the first of ever shorter sequences that is hopeful; as many as there are if none is.
// Where asking ends early: of the first known to be, or of the shortest.
size_t FirstHopeful(const std::vector<Variation>& shorter, const Budget& budget, Cost* cost) {
  size_t begin = 0, end = shorter.size();
  while (begin < end) {
    if (cost->asked_enough()) {
      const size_t first = std::min(end, shorter.size() - 1);
      for (size_t i = begin; i < first; ++i) {
        cost->not_tried.push_back(shorter[i].changes.empty() ? "another layout"
                                                             : InWords(shorter[i].changes));
      }
      return first;
    }
    const size_t middle = begin + (end - begin) / 2;
    if (HopefulAnyhow(shorter[middle], budget, cost)) {
      end = middle;
    } else {
      begin = middle + 1;
    }
  }
  return begin;
}

// How far a change was tried.
enum class Extent { kNot, kPartly, kAll };

struct Answer {
  Extent tried = Extent::kAll;
  std::optional<Evaluated> fitting;
};

// The best layout of the spec that fits. What the closed form calls infeasible is not compiled.
Answer BestThatFits(const v1::JobSpec& spec, const Budget& budget, SearchOptions options,
                    Cost* cost) {
  if (!Hopeful(spec, budget, cost)) return {};
  const absl::StatusOr<Model> model = ReadModel(spec);
  if (!model.ok()) return {};
  options.first_fit = true;
  options.in_time = cost->limits.in_time;
  absl::StatusOr<Searched> searched = SearchLayouts(spec, *model, budget, options, &cost->spent);
  if (absl::IsDeadlineExceeded(searched.status())) return {.tried = Extent::kNot, .fitting = {}};
  if (!searched.ok()) return {};  // no layout respects the change
  Answer answer;
  const bool none_tried = searched->evaluated.empty();
  if (!none_tried && searched->evaluated.front().fits) {
    answer.fitting = std::move(searched->evaluated.front());
  } else if (!searched->all_tried) {
    answer.tried = none_tried ? Extent::kNot : Extent::kPartly;
  }
  return answer;
}

// Specs of one precision and sequence length, the cheapest change first. Of those that only release
// the layout, and of those that offload it, one that fits says it all.
struct Kind {
  std::vector<Variation> released, offloaded;
};

// Those that may fit, the cheapest first.
std::vector<Kind> KindsOf(const v1::JobSpec& spec, const Budget& budget, Cost* cost) {
  const Variation as_is = {.spec = spec, .changes = {}};
  std::vector<std::vector<Variation>> precisions = {Shorter(as_is)};
  // fp16 and fp8 keep what bf16 keeps.
  const std::string& precision = spec.train().precision();
  const bool half = precision == "bf16" || precision == "fp16" || precision == "fp8";
  if (!half) precisions.push_back(Shorter(WithBf16(as_is)));
  std::vector<size_t> first;
  for (const auto& shorter : precisions) first.push_back(FirstHopeful(shorter, budget, cost));
  std::vector<Kind> kinds;
  for (size_t i = 0; i < precisions[0].size(); ++i) {
    for (size_t p = 0; p < precisions.size(); ++p) {
      if (i < first[p]) continue;
      kinds.push_back({WithLayoutReleased(precisions[p][i]), WithOffload(precisions[p][i])});
      // The spec itself is what does not fit.
      if (i == 0 && p == 0) kinds[0].released.erase(kinds[0].released.begin());
    }
  }
  return kinds;
}

// So that an offload that the spec does not have is a change.
void OnDeviceUnlessPinned(v1::Offload* offload) {
  for (v1::TierShares* shares : {offload->mutable_parameter(), offload->mutable_gradient(),
                                 offload->mutable_optimizer(), offload->mutable_activation()}) {
    if (shares->device() + shares->host() + shares->nvme() == 0) shares->set_device(1);
  }
}

// Leaves of `offload` the classes that `pinned` places.
void KeepPinned(const v1::Offload& pinned, v1::Offload* offload) {
  if (!pinned.has_parameter()) offload->clear_parameter();
  if (!pinned.has_gradient()) offload->clear_gradient();
  if (!pinned.has_optimizer()) offload->clear_optimizer();
  if (!pinned.has_activation()) offload->clear_activation();
}

// Before it is known what layout fits.
std::vector<std::string> WordsOf(const v1::JobSpec& spec, const Variation& variation) {
  std::vector<std::string> words = variation.changes;
  const bool offloads = variation.spec.layout().has_offload() && !spec.layout().has_offload();
  words.push_back(offloads ? "an offload" : "another layout");
  return words;
}

bool HasNvme(const v1::JobSpec& spec) { return spec.resources().nvme().paths_size() > 0; }

bool UsesNvme(const v1::Offload& offload) {
  const auto on_nvme = [](const v1::TierShares& shares) { return shares.nvme() > 0; };
  return on_nvme(offload.parameter()) || on_nvme(offload.gradient()) ||
         on_nvme(offload.optimizer()) || on_nvme(offload.activation());
}

// Only what the spec pins or does not offer is a change.
bool IsWithin(const v1::JobSpec& spec, const Variation& variation, const v1::Layout& layout) {
  v1::LayoutSpec pinned = variation.spec.layout();
  KeepPinned(spec.layout().offload(), pinned.mutable_offload());
  if (!spec.layout().has_offload()) pinned.clear_offload();
  if (!variation.changes.empty() ||
      pinned.SerializeAsString() != spec.layout().SerializeAsString()) {
    return false;
  }
  if (!layout.has_offload() || spec.layout().has_offload()) return true;
  return UsesNvme(layout.offload()) ? HasNvme(spec) : OffersTiers(spec);
}

Change ChangeOf(const v1::JobSpec& spec, const Variation& variation, Evaluated fitting) {
  const bool within = IsWithin(spec, variation, fitting.layout);
  std::vector<std::string> words = variation.changes;
  v1::LayoutSpec pinned = spec.layout();
  if (fitting.layout.has_offload()) OnDeviceUnlessPinned(pinned.mutable_offload());
  for (std::string& change : Unpinned(pinned, fitting.layout)) words.push_back(std::move(change));
  return {.words = InWords(words), .evaluated = std::move(fitting), .within_spec = within};
}

// Tries changes: first each a little, so that one that fits is found soon, then those that a little
// was not enough for, if they are cheaper. Used by one thread.
class Attempts {
 public:
  Attempts(const v1::JobSpec& spec, const Budget& budget, std::vector<Kind> kinds, size_t most,
           const TellSearch& tell, Cost* cost)
      : spec_(spec), budget_(budget), most_(most), tell_(tell), cost_(*cost) {
    for (Kind& kind : kinds) {
      for (std::vector<Variation>* variations : {&kind.released, &kind.offloaded}) {
        for (Variation& variation : *variations) {
          std::string words = InWords(WordsOf(spec, variation));
          attempts_.push_back({std::move(variation), std::move(words), lists_});
        }
        ++lists_;
      }
    }
  }

  void TryEach() {
    bool any_tried = false;
    for (size_t i = 0; i < attempts_.size() && Found() < most_; ++i) {
      if (Says(i)) continue;
      if (any_tried && (cost_.too_much() || KeptForLater())) return;
      any_tried = true;
      Try(cost_.share(), &attempts_[i]);
    }
  }

  void TryCheaper() {
    size_t last = attempts_.size();
    const bool any = Found() > 0;
    while (any && !attempts_[last - 1].fitting.has_value()) --last;
    for (size_t i = 0; i < last && (any || Found() == 0); ++i) {
      const int64_t more = any ? cost_.left() : std::max(cost_.left() / 2, cost_.share());
      if (attempts_[i].tried == Extent::kAll || Says(i) || cost_.too_much()) continue;
      if (attempts_[i].spent < more) Try(more, &attempts_[i]);
    }
  }

  Changes Take() {
    Changes changes = {.found = {}, .not_tried = std::move(cost_.not_tried)};
    for (size_t i = 0; i < attempts_.size() && changes.found.size() < most_; ++i) {
      Attempt& one = attempts_[i];
      if (Says(i)) continue;
      if (one.fitting.has_value()) {
        changes.found.push_back(ChangeOf(spec_, one.variation, *std::move(one.fitting)));
        one.fitting.emplace();  // it still says it all
      } else if (one.tried != Extent::kAll) {
        changes.not_tried.push_back(
            absl::StrCat(one.tried == Extent::kPartly ? "all of " : "", one.words));
      }
    }
    return changes;
  }

 private:
  struct Attempt {
    Variation variation;
    std::string words;
    size_t list = 0;  // of which one that fits says it all
    Extent tried = Extent::kNot;
    int64_t spent = 0;  // instructions it was allowed
    std::optional<Evaluated> fitting;
  };

  void Try(int64_t instructions_max, Attempt* one) {
    if (tell_) tell_(one->words);
    Answer answer =
        BestThatFits(one->variation.spec, budget_, {.instructions_max = instructions_max}, &cost_);
    one->tried = answer.tried;
    one->spent = instructions_max;
    one->fitting = std::move(answer.fitting);
  }

  // A cheaper one of its list fits.
  bool Says(size_t index) const {
    for (size_t i = index; i > 0 && attempts_[i - 1].list == attempts_[index].list; --i) {
      if (attempts_[i - 1].fitting.has_value()) return true;
    }
    return false;
  }

  size_t Found() const {
    return static_cast<size_t>(
        absl::c_count_if(attempts_, [](const Attempt& one) { return one.fitting.has_value(); }));
  }

  bool KeptForLater() const { return cost_.left() < cost_.limits.instructions / 3; }

  const v1::JobSpec& spec_;
  const Budget& budget_;
  const size_t most_;
  const TellSearch& tell_;
  Cost& cost_;
  size_t lists_ = 0;
  std::vector<Attempt> attempts_;
};

// With all of the layout left open and a drive, and with what a plan tries where nothing else fits:
// once, as it costs too much to be tried with each change.
std::optional<Change> WidestThatFits(const v1::JobSpec& spec, const Budget& budget,
                                     const TellSearch& tell, Cost* cost) {
  Variation widest = WithLayoutReleased({.spec = spec, .changes = {}}).back();
  if (!HasNvme(spec)) widest.spec.mutable_resources()->mutable_nvme()->add_paths("nvme");
  const bool is_spec = widest.spec.SerializeAsString() == spec.SerializeAsString();
  const bool afforded = cost->limits.instructions >= kUnfitInstructionsMax && !cost->over();
  if (is_spec || !afforded || !Hopeful(widest.spec, budget, cost)) return std::nullopt;
  if (tell) tell("all layouts with a drive");
  Answer answer = BestThatFits(widest.spec, budget, {.last_resorts = true}, cost);
  if (!answer.fitting.has_value()) return std::nullopt;
  if (!HasNvme(spec) && UsesNvme(answer.fitting->layout.offload()))
    widest.changes.push_back("resources.nvme (a folder)");
  return ChangeOf(spec, widest, *std::move(answer.fitting));
}

}  // namespace

ChangeLimits LimitsAfter(const SearchCost& search) {
  constexpr int64_t kLeast = 280'000;
  ChangeLimits limits;
  limits.instructions = std::max(kLeast, limits.instructions - search.instructions);
  return limits;
}

Changes ChangesThatFit(const v1::JobSpec& spec, const Budget& budget, size_t most,
                       const TellSearch& tell, const ChangeLimits& limits) {
  Cost cost = {.limits = limits, .spent = {}};
  if (tell) tell("changes by closed form");
  Attempts attempts(spec, budget, KindsOf(spec, budget, &cost), most, tell, &cost);
  attempts.TryEach();
  attempts.TryCheaper();
  Changes changes = attempts.Take();
  if (changes.found.empty()) {
    auto widest = WidestThatFits(spec, budget, tell, &cost);
    if (widest.has_value()) changes.found.push_back(*std::move(widest));
  }
  return changes;
}

}  // namespace terrace
