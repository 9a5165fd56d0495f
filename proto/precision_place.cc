// SPDX-License-Identifier: Apache-2.0
#include "proto/precision_place.h"

#include <algorithm>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/strings.h"

namespace terrace {
namespace {

struct ModuleName {
  std::string_view name;
  PrecisionModule module;
  bool of_layer;
};

constexpr ModuleName kModules[] = {{"attention", PrecisionModule::kAttention, true},
                                   {"mlp", PrecisionModule::kMlp, true},
                                   {"lm_head", PrecisionModule::kLmHead, false},
                                   {"embedding", PrecisionModule::kEmbedding, false},
                                   {"norms", PrecisionModule::kNorms, false}};

const ModuleName* FindModule(std::string_view name) {
  const auto* const found =
      std::find_if(std::begin(kModules), std::end(kModules),
                   [name](const ModuleName& module) { return module.name == name; });
  return found == std::end(kModules) ? nullptr : found;
}

std::optional<int64_t> Number(absl::string_view text) {
  int32_t number = 0;
  const bool digits = !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  if (!digits || !absl::SimpleAtoi(text, &number)) return std::nullopt;
  return number;
}

std::optional<LayerSpan> ParseSpan(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  const std::vector<absl::string_view> words =
      absl::StrSplit(text, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  if (words.size() == 2 && (words[0] == "first" || words[0] == "last")) {
    const auto count = Number(words[1]);
    if (!count || *count == 0) return std::nullopt;
    return LayerSpan{.count = *count, .from_end = words[0] == "last"};
  }
  const std::vector<absl::string_view> ends = absl::StrSplit(text, '-');
  const auto first = Number(ends.front()), last = Number(ends.back());
  if (ends.size() > 2 || !first || !last || *last < *first) return std::nullopt;
  return LayerSpan{.first = *first, .count = *last - *first + 1};
}

}  // namespace

bool PrecisionPlace::HasLayer(int64_t layer, int64_t layers) const {
  if (spans.empty()) return true;
  return std::any_of(spans.begin(), spans.end(), [&](const LayerSpan& span) {
    const int64_t first = span.from_end ? layers - span.count : span.first;
    return layer >= first && layer < first + span.count;
  });
}

int64_t PrecisionPlace::LeastLayers() const {
  int64_t least = 0;
  for (const LayerSpan& span : spans) least = std::max(least, span.first + span.count);
  return least;
}

int PrecisionPlace::Rank() const {
  return (spans.empty() ? 0 : 2) + (module == PrecisionModule::kLayer ? 0 : 1);
}

std::optional<PrecisionPlace> ParsePrecisionPlace(std::string_view text) {
  PrecisionPlace place;
  if (const ModuleName* alone = FindModule(text)) {
    place.module = alone->module;
    return place;
  }
  absl::string_view layers = Absl(text);
  if (const size_t dot = layers.rfind('.'); dot != absl::string_view::npos) {
    const ModuleName* module = FindModule(text.substr(dot + 1));
    if (module == nullptr || !module->of_layer) return std::nullopt;
    place.module = module->module;
    layers = layers.substr(0, dot);
  }
  for (const absl::string_view part : absl::StrSplit(layers, ',')) {
    const auto span = ParseSpan(part);
    if (!span) return std::nullopt;
    place.spans.push_back(*span);
  }
  return place;
}

}  // namespace terrace
