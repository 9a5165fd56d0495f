// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/what_fits.h"

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
#include "coordinator/prepare/memory_report.h"
#include "coordinator/prepare/variations.h"
#include "proto/program_text.h"

namespace terrace {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// What was spent of the limits.
struct Cost {
  ChangeLimits limits;
  SearchCost spent;
  std::vector<std::string> not_tried;  // in words

  // So that what they leave can be tried, closed forms alone may cost half of it.
  bool asked_enough() const { return spent.compared > limits.compared / 2; }
  // With so little left nothing more is tried in earnest.
  bool too_much() const { return spent.compared > limits.compared || left() < least(); }
  // Of the next change: half of what is left, so that others can be tried too.
  int64_t instructions_max() const { return std::max(left() / 2, std::min(left(), 2 * least())); }

 private:
  int64_t left() const { return std::max<int64_t>(0, limits.instructions - spent.instructions); }
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

// The best layout of the spec, which `words` tell, that fits. What the closed form calls hopeless
// is not compiled.
std::optional<Evaluated> BestThatFits(const v1::JobSpec& spec, const Budget& budget,
                                      const std::string& words, Cost* cost) {
  if (!Hopeful(spec, budget, cost)) return std::nullopt;
  const absl::StatusOr<Model> model = ReadModel(spec);
  if (!model.ok()) return std::nullopt;
  const SearchOptions options = {.first_fit = true, .instructions_max = cost->instructions_max()};
  absl::StatusOr<Searched> searched = SearchLayouts(spec, *model, budget, options, &cost->spent);
  if (!searched.ok()) return std::nullopt;  // no layout respects the change
  const bool none_tried = searched->evaluated.empty();
  const bool fits = !none_tried && searched->evaluated.front().fits;
  if (!fits && !searched->all_tried) {
    cost->not_tried.push_back(absl::StrCat(none_tried ? "" : "all of ", words));
  }
  if (!fits) return std::nullopt;
  return std::move(searched->evaluated.front());
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
  if (spec.train().precision() != "bf16") precisions.push_back(Shorter(WithBf16(as_is)));
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

// "2.3 GiB", "0.4 GiB, host 2.1 GiB".
std::string BytesText(const Evaluated& evaluated) {
  std::string text = FormatBytes(evaluated.device_bytes);
  if (evaluated.host_bytes > 0)
    absl::StrAppend(&text, ", host ", FormatBytes(evaluated.host_bytes));
  if (evaluated.nvme_bytes > 0)
    absl::StrAppend(&text, ", nvme ", FormatBytes(evaluated.nvme_bytes));
  if (!evaluated.shorter.empty()) absl::StrAppend(&text, ", by a sample");
  return text;
}

// Of a step too long to compile all of it only to refuse it; empty for a whole one.
std::string SampleText(const Evaluated& nearest) {
  if (nearest.shorter.empty()) return "";
  return absl::StrCat("; the figures are of a sample of ",
                      nearest.programs[0].rules().micro_batches(), " of the step's ",
                      nearest.layout.micro_batches(), " micro-batches: close, not exact");
}

// What was found, and what was not tried.
std::string CheapestText(const Changes& changes) {
  constexpr size_t kNamed = 3;
  std::vector<std::string> named;
  for (const std::string& words : changes.not_tried) {
    if (named.size() < kNamed && !absl::c_linear_search(named, words)) named.push_back(words);
  }
  const size_t more = changes.not_tried.size() - named.size();
  const std::string not_tried =
      named.empty()
          ? ""
          : absl::StrCat(
                " (not tried, for the time that it would take: ", absl::StrJoin(named, ", "),
                more > 0 ? absl::StrCat(" and ", more, " more") : "", ")");
  if (changes.found.empty()) {
    return not_tried.empty()
               ? "no layout, precision or sequence_length fits; "
               : absl::StrCat("none of the changes that were tried fits", not_tried, "; ");
  }
  return absl::StrCat("the cheapest change that fits: ", changes.found[0].words, " (",
                      BytesText(changes.found[0].evaluated), ")", not_tried, "; or ");
}

// Before it is known what layout fits.
std::vector<std::string> WordsOf(const v1::JobSpec& spec, const Variation& variation) {
  std::vector<std::string> words = variation.changes;
  const bool offloads = variation.spec.layout().has_offload() && !spec.layout().has_offload();
  words.push_back(offloads ? "an offload" : "another layout");
  return words;
}

Change ChangeOf(const v1::JobSpec& spec, const Variation& variation, Evaluated fitting) {
  std::vector<std::string> words = variation.changes;
  v1::LayoutSpec pinned = spec.layout();
  if (fitting.layout.has_offload()) OnDeviceUnlessPinned(pinned.mutable_offload());
  for (std::string& change : Unpinned(pinned, fitting.layout)) words.push_back(std::move(change));
  return {.words = InWords(words), .evaluated = std::move(fitting)};
}

// Of a layout that was not compiled.
std::string SmallerText(const Searched& searched) {
  if (!searched.smaller.has_value()) return "";
  const Evaluated& nearest = searched.evaluated.front();
  const v1::Layout& layout = searched.smaller->layout;
  return absl::StrCat(
      " (by closed form about ",
      FormatBytes(searched.smaller->memory.total() + nearest.programs[0].external_bytes()),
      " would do with ", absl::StrJoin(Differences(nearest.layout, layout), ", "),
      ", which takes too long to compile only to say so)");
}

}  // namespace

Changes ChangesThatFit(const v1::JobSpec& spec, const Budget& budget, size_t most,
                       const TellTried& tell, const ChangeLimits& limits) {
  Changes changes;
  Cost cost = {.limits = limits, .spent = {}};
  bool any_tried = false;
  if (tell) tell("changes by closed form");
  for (const Kind& kind : KindsOf(spec, budget, &cost)) {
    for (const std::vector<Variation>* variations : {&kind.released, &kind.offloaded}) {
      for (const Variation& variation : *variations) {
        const std::string words = InWords(WordsOf(spec, variation));
        if (changes.found.size() >= most) break;
        if (any_tried && cost.too_much()) {
          cost.not_tried.push_back(words);
          continue;
        }
        any_tried = true;
        if (tell) tell(words);
        std::optional<Evaluated> fitting = BestThatFits(variation.spec, budget, words, &cost);
        if (!fitting.has_value()) continue;
        changes.found.push_back(ChangeOf(spec, variation, *std::move(fitting)));
        break;
      }
    }
  }
  changes.not_tried = std::move(cost.not_tried);
  return changes;
}

absl::Status DoesNotFit(const v1::JobSpec& spec, const Budget& budget, const Searched& searched,
                        const Changes& changes) {
  const Evaluated& nearest = searched.evaluated.front();
  const int64_t enough_mib = (nearest.device_bytes + kMiB - 1) / kMiB;
  const bool device_short =
      budget.device_memory_bytes > 0 && nearest.device_bytes > budget.device_memory_bytes;
  const v1::Binding binding = ReportBinding(nearest, LimitsOf(spec), budget.device_memory_bytes);
  std::vector<std::string> holders;
  for (int i = 0; i < std::min(3, binding.largest_size()); ++i) {
    holders.push_back(
        absl::StrCat(binding.largest(i).name(), " ", FormatBytes(binding.largest(i).bytes())));
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "job '", spec.name(), "' needs ", absl::StrJoin(Excesses(spec, budget, nearest), " and "),
      " per rank", nearest.programs.size() > 1 ? absl::StrCat(" of stage ", binding.stage()) : "",
      "; ", CheapestText(changes),
      device_short ? absl::StrCat("resources.device_memory of at least ", enough_mib, " MiB",
                                  SmallerText(searched))
                   : "more of it in resources",
      "; the most is held at ", binding.instruction(), ", by ", absl::StrJoin(holders, ", "),
      SampleText(nearest)));
}

absl::Status DoesNotFit(const v1::JobSpec& spec, const Budget& budget, const Searched& searched) {
  return DoesNotFit(spec, budget, searched, ChangesThatFit(spec, budget, 1, {}));
}

}  // namespace terrace
