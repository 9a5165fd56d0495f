// SPDX-License-Identifier: Apache-2.0
#include "proto/report/layout_text.h"

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/strings.h"
#include "base/text/number_format.h"

namespace terrace {
namespace {

// What follows each other and is alike, with its count: "3 block, 9 none", "3, 30 x 4, 3". Of many
// runs only the sums: "84 selective and 42 none in turns".
template <typename Values>
std::string Runs(const Values& values, std::string_view times) {
  constexpr size_t kRunsMost = 6;
  std::vector<std::pair<int, std::string>> runs, sums;
  for (const auto& value : values) {
    const std::string word = absl::StrCat(value);
    if (runs.empty() || runs.back().second != word) runs.emplace_back(0, word);
    ++runs.back().first;
    auto sum = std::find_if(sums.begin(), sums.end(),
                            [&word](const auto& one) { return one.second == word; });
    if (sum == sums.end()) sum = sums.insert(sums.end(), {0, word});
    ++sum->first;
  }
  const bool turns = runs.size() > kRunsMost;
  const std::string text = absl::StrJoin(
      turns ? sums : runs, turns ? " and " : ", ", [times](std::string* out, const auto& run) {
        const bool bare = run.first == 1 && times != " ";
        absl::StrAppend(out, bare ? "" : absl::StrCat(run.first, Absl(times)), run.second);
      });
  return turns ? text + " in turns" : text;
}

std::string StagesText(const v1::Layout& layout) {
  std::string text = absl::StrCat("pp ", layout.pipeline_parallel());
  const std::string schedule = layout.schedule().empty() ? "1f1b" : layout.schedule();
  if (layout.pipeline_parallel() <= 1 && schedule == "1f1b") return text;
  absl::StrAppend(&text, " (", schedule);
  if (layout.interleave() > 1) absl::StrAppend(&text, ", ", layout.interleave(), " chunks a stage");
  if (layout.stage_layers_size() > 0) {
    absl::StrAppend(&text, ", layers ", Runs(layout.stage_layers(), " x "));
  }
  return text + ")";
}

std::string ZeroText(const v1::Layout& layout) {
  std::string text = absl::StrCat("zero ", layout.zero_stage());
  std::string details;
  if (layout.shard_size() > 0)
    absl::StrAppend(&details, "shards over ", layout.shard_size(), " ranks");
  if (layout.persistent_parameters() > 0) {
    absl::StrAppend(&details, details.empty() ? "" : ", ", "whole below ",
                    Grouped(layout.persistent_parameters()), " elements");
  }
  return details.empty() ? text : absl::StrCat(text, " (", details, ")");
}

std::string RecomputeText(const v1::Layout& layout) {
  std::string text = absl::StrCat("recompute ", layout.recompute());
  if (layout.recompute_every() > 0)
    absl::StrAppend(&text, " ", layout.recompute_every(), " layers");
  if (layout.recompute_layers_size() > 0) {
    absl::StrAppend(&text, " (by layer: ", Runs(layout.recompute_layers(), " "), ")");
  }
  return text;
}

// What is not all on the device.
std::string OffloadText(const v1::Offload& offload) {
  std::string text;
  const auto add = [&text](const char* name, const v1::TierShares& shares) {
    if (shares.host() == 0 && shares.nvme() == 0) return;
    absl::StrAppend(&text, text.empty() ? ", offload " : ", ", name, " ", TierSharesText(shares));
  };
  add("parameter", offload.parameter());
  add("gradient", offload.gradient());
  add("optimizer", offload.optimizer());
  add("activation", offload.activation());
  return text;
}

std::string MomentsText(const v1::Layout& layout) {
  return layout.moments_format().empty() ? "f32" : layout.moments_format();
}

std::string OnDevice(const v1::TierShares& shares) {
  const std::string text = TierSharesText(shares);
  return text.empty() ? "device" : text;
}

}  // namespace

std::string TierSharesText(const v1::TierShares& shares) {
  std::vector<std::pair<const char*, double>> parts;
  for (const auto& part : {std::pair("device", shares.device()), std::pair("host", shares.host()),
                           std::pair("nvme", shares.nvme())}) {
    if (part.second > 0) parts.push_back(part);
  }
  if (parts.size() == 1) return parts[0].first;
  return absl::StrJoin(parts, " + ", [](std::string* out, const auto& part) {
    absl::StrAppend(out, part.first, " ", 100 * part.second, " %");  // all of 64ths, to be pinned
  });
}

std::string TilesText(int64_t tile_bytes) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  return tile_bytes > 0 && tile_bytes % kMiB == 0 ? absl::StrCat(tile_bytes / kMiB, "MiB")
                                                  : absl::StrCat(tile_bytes);
}

std::vector<LayoutWord> LayoutWords(const v1::Layout& layout) {
  const auto number = [](uint32_t value) { return absl::StrCat(value); };
  return {{"dp", number(layout.data_parallel())},
          {"tp", number(layout.tensor_parallel())},
          {"pp", number(layout.pipeline_parallel())},
          {"cp", number(layout.context_parallel())},
          {"zero", number(layout.zero_stage())},
          {"recompute", layout.recompute()},
          {"recompute_layers", Runs(layout.recompute_layers(), " ")},
          {"schedule", layout.schedule()},
          {"interleave", number(layout.interleave())},
          {"sequence_parallel", layout.sequence_parallel() ? "true" : "false"},
          {"micro_batch", number(layout.micro_batch())},
          {"offload.parameter", OnDevice(layout.offload().parameter())},
          {"offload.gradient", OnDevice(layout.offload().gradient())},
          {"offload.optimizer", OnDevice(layout.offload().optimizer())},
          {"offload.activation", OnDevice(layout.offload().activation())},
          {"tile_bytes", TilesText(layout.tile_bytes())},
          {"allocator", layout.allocator().empty() ? "planned" : layout.allocator()},
          {"formats.parameter", layout.parameter_format()}};
}

std::string PrecisionText(const v1::Layout& layout) {
  std::vector<std::string> parts, attention, mlp;
  for (const v1::LayerPrecision& layer : layout.layer_precisions()) {
    attention.push_back(layer.attention());
    mlp.push_back(layer.mlp());
  }
  if (attention != mlp) {
    parts.push_back(absl::StrCat("attention by layer: ", Runs(attention, " ")));
    parts.push_back(absl::StrCat("mlp by layer: ", Runs(mlp, " ")));
  } else if (!mlp.empty()) {
    parts.push_back(absl::StrCat("by layer: ", Runs(mlp, " ")));
  }
  if (!layout.head_precision().empty())
    parts.push_back(absl::StrCat("lm_head ", layout.head_precision()));
  if (!layout.embedding_precision().empty())
    parts.push_back(absl::StrCat("embedding ", layout.embedding_precision()));
  if (parts.empty()) return layout.precision();
  return absl::StrCat(layout.precision(), " (", absl::StrJoin(parts, "; "), ")");
}

std::string LayoutText(const v1::Layout& layout) {
  std::string text = absl::StrCat("dp ", layout.data_parallel(), ", tp ", layout.tensor_parallel(),
                                  layout.sequence_parallel() ? " + sequence" : "", ", ",
                                  StagesText(layout), ", cp ", layout.context_parallel());
  if (layout.context_parallel() > 1) {
    absl::StrAppend(&text, " (", layout.context_type().empty() ? "ring" : layout.context_type(),
                    ")");
  }
  absl::StrAppend(&text, ", ", ZeroText(layout), ", ", RecomputeText(layout), ", ",
                  PrecisionText(layout));
  if (layout.stochastic_rounding()) absl::StrAppend(&text, " weights rounded stochastically");
  if (!layout.optimizer().empty() && layout.optimizer() != "adamw")
    absl::StrAppend(&text, ", optimizer ", layout.optimizer());
  // With ZeRO they have the bits of products as a rule.
  const std::string& format = layout.parameter_format();
  const bool short_products = layout.precision() == "bf16" || layout.precision() == "fp16";
  const bool unusual = (format == "f32") == (layout.zero_stage() > 0);
  if (!format.empty() && !layout.stochastic_rounding() && short_products && unusual)
    absl::StrAppend(&text, ", weights in ", format);
  if (MomentsText(layout) != "f32") absl::StrAppend(&text, ", moments in ", MomentsText(layout));
  if (layout.gradient_format() == "bf16") {
    text += ", gradients in bf16";
  }
  const std::string& reduce = layout.reduce_format();
  if (!reduce.empty() && reduce != "f32" && reduce != layout.gradient_format()) {
    absl::StrAppend(&text, ", gradients sent in ", reduce);
    if (layout.reduce_block() > 1)
      absl::StrAppend(&text, " (first over ", layout.reduce_block(), " ranks)");
    if (!layout.residual_format().empty())
      absl::StrAppend(&text, " with residuals in ", layout.residual_format());
  }
  if (!layout.gather_format().empty())
    absl::StrAppend(&text, ", gathered in ", layout.gather_format());
  if (!layout.frozen_format().empty())
    absl::StrAppend(&text, ", frozen weights in ", layout.frozen_format());
  if (!layout.activation_format().empty())
    absl::StrAppend(&text, ", activations in ", layout.activation_format());
  text += OffloadText(layout.offload());
  if (layout.tile_bytes() > 0)
    absl::StrAppend(&text, ", tiles of ", TilesText(layout.tile_bytes()));
  if (!layout.allocator().empty() && layout.allocator() != "planned")
    absl::StrAppend(&text, ", ", layout.allocator(), " allocator");
  return text;
}

std::vector<std::string> Differences(const v1::Layout& from, const v1::Layout& to) {
  const auto before = LayoutWords(from), after = LayoutWords(to);
  std::vector<std::string> differences;
  for (size_t i = 0; i < after.size(); ++i) {
    if (before[i] == after[i]) continue;
    const std::string& value = after[i].second;
    differences.push_back(absl::StrCat(after[i].first, " ", value.empty() ? "all alike" : value));
  }
  return differences;
}

}  // namespace terrace
