// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/what_fits.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/planner/estimate.h"
#include "coordinator/prepare/layout_text.h"
#include "coordinator/prepare/memory_report.h"
#include "coordinator/prepare/search.h"
#include "proto/program_text.h"

namespace terrace {
namespace {

constexpr int64_t kMinSequenceLength = 16;
constexpr int64_t kMiB = int64_t{1} << 20;

// The best layout of the spec that fits. What the closed form calls hopeless is not compiled.
std::optional<Evaluated> BestThatFits(const v1::JobSpec& spec, const Budget& budget) {
  const absl::StatusOr<Model> model = ReadModel(spec);
  if (!model.ok()) return std::nullopt;
  const auto layouts = Candidates(spec, *model, budget, Search::kAll);
  if (!layouts.ok()) return std::nullopt;
  const Estimator estimator(spec, *model);
  const bool hope = std::any_of(layouts->begin(), layouts->end(), [&](const v1::Layout& layout) {
    return !Hopeless(estimator.Memory(layout), spec, budget);
  });
  if (!hope) return std::nullopt;
  absl::StatusOr<Searched> searched = SearchLayouts(spec, *model, budget, Effort::kFirstFit);
  if (!searched.ok() || !searched->evaluated.front().fits) return std::nullopt;
  return std::move(searched->evaluated.front());
}

// A spec with some keys changed, and the changes in words.
struct Variation {
  v1::JobSpec spec;
  std::vector<std::string> changes;
};

Variation WithBf16(Variation variation) {
  variation.spec.mutable_train()->set_precision("bf16");
  variation.changes.push_back("train.precision bf16");
  return variation;
}

Variation WithSequence(Variation variation, int64_t length) {
  v1::DataSpec* data = variation.spec.mutable_data();
  data->set_sequence_length(length);
  // The longest bucket is as long as the samples.
  const std::vector<int64_t> buckets(data->buckets().begin(), data->buckets().end());
  data->clear_buckets();
  for (const int64_t bucket : buckets) {
    if (bucket < length) data->add_buckets(bucket);
  }
  if (!buckets.empty()) data->add_buckets(length);
  variation.changes.push_back(absl::StrCat("data.sequence_length ", length));
  return variation;
}

// What costs nothing but time, from the cheapest on; each step keeps those before it.
using Release = void (*)(v1::LayoutSpec*);
constexpr Release kReleases[] = {[](v1::LayoutSpec* layout) { layout->set_allocator("planned"); },
                                 [](v1::LayoutSpec* layout) { layout->clear_micro_batch(); },
                                 [](v1::LayoutSpec* layout) {
                                   layout->clear_recompute();
                                   layout->clear_recompute_every();
                                   layout->clear_recompute_layers();
                                 },
                                 [](v1::LayoutSpec* layout) {
                                   layout->set_zero(-1);
                                   layout->clear_shard_size();
                                 },
                                 [](v1::LayoutSpec* layout) { layout->set_tile_bytes(-1); },
                                 [](v1::LayoutSpec* layout) {
                                   *layout = v1::LayoutSpec();
                                   layout->set_zero(-1);
                                   layout->set_sequence_parallel(-1);
                                   layout->set_persistent_parameters(-1);
                                   layout->set_tile_bytes(-1);
                                 }};

// The spec itself, then with more and more of its layout left open.
std::vector<Variation> WithLayoutReleased(const Variation& variation) {
  std::vector<Variation> released = {variation};
  for (const Release release : kReleases) {
    Variation next = released.back();
    release(next.spec.mutable_layout());
    const bool changed =
        next.spec.layout().SerializeAsString() != released.back().spec.layout().SerializeAsString();
    if (changed) released.push_back(std::move(next));
  }
  return released;
}

// The layout left open and offloaded, to the host and to NVMe; as the spec has it if it has a word
// on it. Only memory that the spec does not mention is asked for.
std::vector<Variation> WithOffload(const Variation& variation) {
  std::vector<Variation> offloaded;
  if (variation.spec.layout().has_offload()) return offloaded;
  const bool has_nvme = variation.spec.resources().nvme().paths_size() > 0;
  for (const v1::Offload& offload : Offloads(/*to_nvme=*/true)) {
    Variation next = WithLayoutReleased(variation).back();
    *next.spec.mutable_layout()->mutable_offload() = offload;
    const bool nvme = offload.optimizer().nvme() > 0;
    if (nvme && !has_nvme) next.changes.push_back("resources.nvme (a folder)");
    offloaded.push_back(std::move(next));
  }
  return offloaded;
}

// The cheapest first.
std::vector<Variation> Variations(const v1::JobSpec& spec) {
  const Variation as_is = {.spec = spec, .changes = {}};
  std::vector<Variation> kinds = {as_is};
  const bool fp32 = spec.train().precision() != "bf16";
  if (fp32) kinds.push_back(WithBf16(as_is));
  for (int64_t length = spec.data().sequence_length() / 2; length >= kMinSequenceLength;
       length /= 2) {
    kinds.push_back(WithSequence(as_is, length));
    if (fp32) kinds.push_back(WithSequence(WithBf16(as_is), length));
  }
  std::vector<Variation> variations;
  for (const Variation& kind : kinds) {
    for (const auto& more : {WithLayoutReleased(kind), WithOffload(kind)}) {
      variations.insert(variations.end(), more.begin(), more.end());
    }
  }
  variations.erase(variations.begin());  // the spec itself is what does not fit
  return variations;
}

// "a", "a with b", "a with b and c".
std::string InWords(const std::vector<std::string>& changes) {
  if (changes.size() < 2) return absl::StrJoin(changes, "");
  return absl::StrCat(changes[0], " with ",
                      absl::StrJoin(changes.begin() + 1, changes.end(), " and "));
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
  return text;
}

}  // namespace

std::vector<Change> ChangesThatFit(const v1::JobSpec& spec, const Budget& budget, size_t most) {
  std::vector<Change> found;
  for (const Variation& variation : Variations(spec)) {
    // Dearer changes of a kind that has one that fits already say nothing new.
    const bool new_kind =
        found.empty() || variation.changes.size() > 0 || variation.spec.layout().has_offload();
    if (!new_kind) continue;
    std::optional<Evaluated> fitting = BestThatFits(variation.spec, budget);
    if (!fitting.has_value()) continue;
    std::vector<std::string> changes = variation.changes;
    v1::LayoutSpec pinned = spec.layout();
    if (fitting->layout.has_offload()) OnDeviceUnlessPinned(pinned.mutable_offload());
    for (std::string& change : Unpinned(pinned, fitting->layout)) {
      changes.push_back(std::move(change));
    }
    found.push_back({.words = InWords(changes), .evaluated = *std::move(fitting)});
    if (found.size() >= most) break;
  }
  return found;
}

absl::Status DoesNotFit(const v1::JobSpec& spec, const Budget& budget, const Evaluated& nearest,
                        const std::vector<Change>& changes) {
  const int64_t enough_mib = (nearest.device_bytes + kMiB - 1) / kMiB;
  const bool device_short =
      budget.device_memory_bytes > 0 && nearest.device_bytes > budget.device_memory_bytes;
  const std::string cheapest =
      changes.empty() ? "no layout, precision or sequence_length fits; "
                      : absl::StrCat("the cheapest change that fits: ", changes[0].words, " (",
                                     BytesText(changes[0].evaluated), "); or ");
  const v1::Binding binding =
      ReportBinding(nearest.programs, LimitsOf(spec), budget.device_memory_bytes);
  std::vector<std::string> holders;
  for (int i = 0; i < std::min(3, binding.largest_size()); ++i) {
    holders.push_back(
        absl::StrCat(binding.largest(i).name(), " ", FormatBytes(binding.largest(i).bytes())));
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "job '", spec.name(), "' needs ", absl::StrJoin(Excesses(spec, budget, nearest), " and "),
      " per rank", nearest.programs.size() > 1 ? absl::StrCat(" of stage ", binding.stage()) : "",
      "; ", cheapest,
      device_short ? absl::StrCat("resources.device_memory of at least ", enough_mib, " MiB")
                   : "more of it in resources",
      "; the most is held at ", binding.instruction(), ", by ", absl::StrJoin(holders, ", ")));
}

absl::Status DoesNotFit(const v1::JobSpec& spec, const Budget& budget, const Evaluated& nearest) {
  return DoesNotFit(spec, budget, nearest, ChangesThatFit(spec, budget, 1));
}

}  // namespace terrace
