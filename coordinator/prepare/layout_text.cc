// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/layout_text.h"

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

// As LayoutWords() of what is pinned, "" for what is not.
std::vector<LayoutWord> Words(const v1::LayoutSpec& pinned) {
  const auto number = [](uint32_t value) { return value == 0 ? "" : absl::StrCat(value); };
  const bool listed = pinned.recompute_layers_size() > 0;
  const int32_t tokens = pinned.sequence_parallel();
  return {{"dp", number(pinned.dp())},
          {"tp", number(pinned.tp())},
          {"pp", number(pinned.pp())},
          {"cp", number(pinned.cp())},
          {"zero", pinned.zero() < 0 ? "" : absl::StrCat(pinned.zero())},
          {"recompute", listed ? "none" : pinned.recompute()},
          {"recompute_layers", ""},
          {"schedule", pinned.schedule()},
          {"interleave", number(pinned.interleave())},
          {"sequence_parallel", tokens < 0   ? ""
                                : tokens > 0 ? "true"
                                             : "false"},
          {"micro_batch", number(pinned.micro_batch())},
          {"offload.parameter", TierSharesText(pinned.offload().parameter())},
          {"offload.gradient", TierSharesText(pinned.offload().gradient())},
          {"offload.optimizer", TierSharesText(pinned.offload().optimizer())},
          {"offload.activation", TierSharesText(pinned.offload().activation())},
          {"tile_bytes", pinned.tile_bytes() < 0 ? "" : TilesText(pinned.tile_bytes())},
          {"allocator", pinned.allocator()},
          {"formats.parameter", ""}};
}

}  // namespace

std::vector<std::string> Unpinned(const v1::LayoutSpec& pinned, const v1::Layout& layout) {
  const auto before = Words(pinned), after = LayoutWords(layout);
  std::vector<std::string> differences;
  for (size_t i = 0; i < after.size(); ++i) {
    if (before[i].second.empty() || before[i] == after[i]) continue;
    differences.push_back(absl::StrCat("layout.", after[i].first, " ", after[i].second));
  }
  return differences;
}

}  // namespace terrace
