// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/layout_text.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/plan_text.h"

namespace terrace {
namespace {

std::string SharesText(const v1::TierShares& shares, const std::string& absent) {
  const std::string text = TierSharesText(shares);
  return text.empty() ? absent : text;
}

// The keys that change how fast and how large a layout is, with their values in words.
std::vector<std::pair<std::string, std::string>> Words(const v1::Layout& layout) {
  const auto number = [](uint32_t value) { return absl::StrCat(value); };
  return {{"dp", number(layout.data_parallel())},
          {"tp", number(layout.tensor_parallel())},
          {"pp", number(layout.pipeline_parallel())},
          {"cp", number(layout.context_parallel())},
          {"zero", number(layout.zero_stage())},
          {"recompute", layout.recompute()},
          {"schedule", layout.schedule()},
          {"interleave", number(layout.interleave())},
          {"sequence_parallel", layout.sequence_parallel() ? "true" : "false"},
          {"micro_batch", number(layout.micro_batch())},
          {"offload.parameter", SharesText(layout.offload().parameter(), "device")},
          {"offload.gradient", SharesText(layout.offload().gradient(), "device")},
          {"offload.optimizer", SharesText(layout.offload().optimizer(), "device")},
          {"offload.activation", SharesText(layout.offload().activation(), "device")},
          {"allocator", layout.allocator() == "caching" ? "caching" : "planned"}};
}

// The same of what is pinned, "" for what is not.
std::vector<std::pair<std::string, std::string>> Words(const v1::LayoutSpec& pinned) {
  const auto number = [](uint32_t value) { return value == 0 ? "" : absl::StrCat(value); };
  const bool listed = pinned.recompute_layers_size() > 0;
  const int32_t tokens = pinned.sequence_parallel();
  return {{"dp", number(pinned.dp())},
          {"tp", number(pinned.tp())},
          {"pp", number(pinned.pp())},
          {"cp", number(pinned.cp())},
          {"zero", pinned.zero() < 0 ? "" : absl::StrCat(pinned.zero())},
          {"recompute", listed ? "none" : pinned.recompute()},
          {"schedule", pinned.schedule()},
          {"interleave", number(pinned.interleave())},
          {"sequence_parallel", tokens < 0   ? ""
                                : tokens > 0 ? "true"
                                             : "false"},
          {"micro_batch", number(pinned.micro_batch())},
          {"offload.parameter", SharesText(pinned.offload().parameter(), "")},
          {"offload.gradient", SharesText(pinned.offload().gradient(), "")},
          {"offload.optimizer", SharesText(pinned.offload().optimizer(), "")},
          {"offload.activation", SharesText(pinned.offload().activation(), "")},
          {"allocator", pinned.allocator()}};
}

}  // namespace

std::string LayoutText(const v1::Layout& layout) {
  auto words = Words(layout);
  // What is on the device as usual needs no word.
  std::erase_if(words, [](const auto& word) {
    return (absl::StartsWith(word.first, "offload.") && word.second == "device") ||
           (word.first == "allocator" && word.second == "planned");
  });
  return absl::StrJoin(words, ", ", absl::PairFormatter(" "));
}

std::vector<std::string> Differences(const v1::Layout& from, const v1::Layout& to) {
  const auto before = Words(from), after = Words(to);
  std::vector<std::string> differences;
  for (size_t i = 0; i < after.size(); ++i) {
    if (before[i] != after[i])
      differences.push_back(absl::StrCat(after[i].first, " ", after[i].second));
  }
  return differences;
}

std::vector<std::string> Unpinned(const v1::LayoutSpec& pinned, const v1::Layout& layout) {
  const auto before = Words(pinned), after = Words(layout);
  std::vector<std::string> differences;
  for (size_t i = 0; i < after.size(); ++i) {
    if (before[i].second.empty() || before[i] == after[i]) continue;
    differences.push_back(absl::StrCat("layout.", after[i].first, " ", after[i].second));
  }
  return differences;
}

}  // namespace terrace
