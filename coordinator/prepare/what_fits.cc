// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/what_fits.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/prepare/evaluate.h"
#include "proto/program_text.h"

namespace terrace {
namespace {

constexpr int64_t kMinSequenceLength = 16;
constexpr int64_t kMiB = int64_t{1} << 20;

// The largest micro-batch that fits is the fastest. Memory grows with it, so the search is a
// bisection.
std::optional<Evaluated> LargestThatFits(const v1::JobSpec& spec, const Budget& budget) {
  const absl::StatusOr<Model> model = ReadModel(spec);
  if (!model.ok()) return std::nullopt;
  absl::StatusOr<std::vector<v1::Layout>> layouts = Candidates(spec, *model, budget);
  if (!layouts.ok()) return std::nullopt;
  std::sort(layouts->begin(), layouts->end(), [](const v1::Layout& a, const v1::Layout& b) {
    return a.micro_batch() < b.micro_batch();
  });
  const double smallest = static_cast<double>(EstimateDeviceBytes(spec, *model, layouts->front()));
  if (smallest > kHopeless * static_cast<double>(budget.device_memory_bytes)) return std::nullopt;
  std::optional<Evaluated> best;
  size_t low = 0, high = layouts->size();  // all below `low` fit, none from `high` on
  while (low < high) {
    const size_t middle = best.has_value() ? (low + high) / 2 : low;
    absl::StatusOr<Evaluated> evaluated = Evaluate(spec, *model, budget, (*layouts)[middle]);
    if (!evaluated.ok()) return best;
    if (evaluated->fits) {
      best = *std::move(evaluated);
      low = middle + 1;
    } else if (!best.has_value()) {
      return std::nullopt;
    } else {
      high = middle;
    }
  }
  return best;
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
  variation.spec.mutable_data()->set_sequence_length(length);
  variation.changes.push_back(absl::StrCat("data.sequence_length ", length));
  return variation;
}

// The cheapest first; each also with the micro-batch left open when it is pinned.
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
    if (!kind.changes.empty()) variations.push_back(kind);
    if (spec.layout().micro_batch() <= 1) continue;
    variations.push_back(kind);
    variations.back().spec.mutable_layout()->set_micro_batch(0);
  }
  return variations;
}

// "a", "a with b", "a with b and c".
std::string InWords(const std::vector<std::string>& changes) {
  if (changes.size() < 2) return absl::StrJoin(changes, "");
  return absl::StrCat(changes[0], " with ",
                      absl::StrJoin(changes.begin() + 1, changes.end(), " and "));
}

std::string CheapestChange(const v1::JobSpec& spec, const Budget& budget) {
  for (const Variation& variation : Variations(spec)) {
    const std::optional<Evaluated> fitting = LargestThatFits(variation.spec, budget);
    if (!fitting.has_value()) continue;
    std::vector<std::string> changes = variation.changes;
    if (spec.layout().micro_batch() != 0 &&
        spec.layout().micro_batch() != fitting->layout.micro_batch()) {
      changes.push_back(absl::StrCat("layout.micro_batch ", fitting->layout.micro_batch()));
    }
    return absl::StrCat("the cheapest change that fits: ", InWords(changes), " (",
                        FormatBytes(fitting->device_bytes), "); or ");
  }
  return "no smaller micro_batch, precision or sequence_length fits; ";
}

}  // namespace

absl::Status DoesNotFit(const v1::JobSpec& spec, const Budget& budget, int64_t needed_bytes) {
  const int64_t enough_mib = (needed_bytes + kMiB - 1) / kMiB;
  return absl::ResourceExhaustedError(absl::StrCat(
      "job '", spec.name(), "' needs ", FormatBytes(needed_bytes), " (", needed_bytes,
      " bytes) of ", FormatBytes(budget.device_memory_bytes), " per rank; ",
      CheapestChange(spec, budget), "resources.device_memory of at least ", enough_mib, " MiB"));
}

}  // namespace terrace
