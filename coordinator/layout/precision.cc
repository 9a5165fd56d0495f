// SPDX-License-Identifier: Apache-2.0
#include "coordinator/layout/precision.h"

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "coordinator/layout/rules.h"
#include "proto/precision_place.h"

namespace terrace {
namespace {

struct Rule {
  PrecisionPlace place;
  const v1::PrecisionRule* written;
};

std::vector<Rule> RulesOf(const v1::TrainSpec& train) {
  std::vector<Rule> rules;
  for (const v1::PrecisionRule& rule : train.precision_rules()) {
    if (auto place = ParsePrecisionPlace(rule.where())) rules.push_back({*std::move(place), &rule});
  }
  return rules;
}

bool IsAbout(const PrecisionPlace& place, PrecisionModule module, int64_t layer, int64_t layers) {
  const bool of_module = place.module == PrecisionModule::kLayer || place.module == module;
  return of_module && place.HasLayer(layer, layers);
}

// Of the rules about a module of a layer the one that counts, and another of the same rank that
// says something else.
struct Found {
  const Rule* rule = nullptr;
  const Rule* against = nullptr;
};
Found FindRule(const std::vector<Rule>& rules, PrecisionModule module, int64_t layer,
               int64_t layers) {
  Found found;
  for (const Rule& rule : rules) {
    if (!IsAbout(rule.place, module, layer, layers)) continue;
    if (found.rule == nullptr || rule.place.Rank() > found.rule->place.Rank()) {
      found = {.rule = &rule};
    } else if (rule.place.Rank() == found.rule->place.Rank() &&
               rule.written->precision() != found.rule->written->precision()) {
      found.against = &rule;
    }
  }
  return found;
}

// "" where no rule is about it.
std::string Beside(const std::vector<Rule>& rules, PrecisionModule module) {
  for (const Rule& rule : rules) {
    if (rule.place.module == module) return rule.written->precision();
  }
  return "";
}

std::string ProblemOf(const std::string& got, const std::string& must, std::string_view way_out) {
  return absl::StrCat("train.precision.layers: got ", got, ", must ", must, "; try ",
                      Absl(way_out));
}

// Each precision with its share, the most first.
template <typename PrecisionOf>
std::vector<PrecisionShare> Shares(const v1::Layout& layout, const PrecisionOf& precision_of) {
  const int64_t layers = std::max(1, layout.layer_precisions_size());
  std::vector<PrecisionShare> shares;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string_view precision = precision_of(layout, layer);
    auto share = std::find_if(shares.begin(), shares.end(), [&](const PrecisionShare& one) {
      return one.precision == precision;
    });
    if (share == shares.end()) share = shares.insert(shares.end(), {.precision = precision});
    share->share += 1.0 / static_cast<double>(layers);
  }
  std::stable_sort(shares.begin(), shares.end(),
                   [](const auto& a, const auto& b) { return a.share > b.share; });
  return shares;
}

bool HasIn(const std::vector<PrecisionShare>& shares, std::string_view precision) {
  return std::any_of(shares.begin(), shares.end(),
                     [&](const PrecisionShare& one) { return one.precision == precision; });
}

double RoundedOf(const std::vector<PrecisionShare>& shares, const std::string& format) {
  double rounded = 0;
  for (const PrecisionShare& one : shares) {
    if (ProductFormat(one.precision) == format) rounded += one.share;
  }
  return rounded;
}

}  // namespace

void SetPrecisions(const v1::TrainSpec& train, int64_t layers, v1::Layout* layout) {
  layout->set_precision(train.precision());
  layout->clear_layer_precisions();
  const std::vector<Rule> rules = RulesOf(train);
  layout->set_head_precision(Beside(rules, PrecisionModule::kLmHead));
  layout->set_embedding_precision(Beside(rules, PrecisionModule::kEmbedding) == "fp32" ? "fp32"
                                                                                       : "");
  const auto of = [&](PrecisionModule module, int64_t layer) {
    const Rule* rule = FindRule(rules, module, layer, layers).rule;
    return rule == nullptr ? train.precision() : rule->written->precision();
  };
  bool alike = true;
  for (int64_t layer = 0; layer < layers; ++layer) {
    v1::LayerPrecision* precision = layout->add_layer_precisions();
    precision->set_attention(of(PrecisionModule::kAttention, layer));
    precision->set_mlp(of(PrecisionModule::kMlp, layer));
    alike &= precision->attention() == train.precision() && precision->mlp() == train.precision();
  }
  if (alike) layout->clear_layer_precisions();
}

std::vector<std::string> PrecisionProblems(const v1::TrainSpec& train, int64_t layers) {
  const std::vector<Rule> rules = RulesOf(train);
  for (const Rule& rule : rules) {
    if (rule.place.LeastLayers() <= layers) continue;
    const bool counts = absl::StartsWith(rule.written->where(), "first") ||
                        absl::StartsWith(rule.written->where(), "last");
    return {
        ProblemOf(absl::StrCat("'", rule.written->where(), "'"),
                  absl::StrCat("name some of the model's ", layers, " layers, 0 to ", layers - 1),
                  counts ? absl::StrCat("at most ", layers)
                         : absl::StrCat("'last 1' for the last layer, ", layers - 1))};
  }
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (const PrecisionModule module : {PrecisionModule::kAttention, PrecisionModule::kMlp}) {
      const Found found = FindRule(rules, module, layer, layers);
      if (found.against == nullptr) continue;
      const auto text = [](const Rule& rule) {
        return absl::StrCat("'", rule.written->where(), "' ", rule.written->precision());
      };
      return {ProblemOf(absl::StrCat(text(*found.rule), " and ", text(*found.against)),
                        absl::StrCat("give layer ", layer, " one precision"),
                        "spans that do not overlap")};
    }
  }
  return {};
}

std::string_view AttentionPrecision(const v1::Layout& layout, int64_t layer) {
  if (layout.layer_precisions_size() == 0) return layout.precision();
  return layout.layer_precisions(static_cast<int>(layer)).attention();
}

std::string_view MlpPrecision(const v1::Layout& layout, int64_t layer) {
  if (layout.layer_precisions_size() == 0) return layout.precision();
  return layout.layer_precisions(static_cast<int>(layer)).mlp();
}

std::string_view HeadPrecision(const v1::Layout& layout) {
  if (!layout.head_precision().empty()) return layout.head_precision();
  return layout.precision() == "fp8" ? "bf16" : std::string_view(layout.precision());
}

std::vector<PrecisionShare> AttentionShares(const v1::Layout& layout) {
  return Shares(layout, AttentionPrecision);
}

std::vector<PrecisionShare> MlpShares(const v1::Layout& layout) {
  return Shares(layout, MlpPrecision);
}

bool ComputesIn(const v1::Layout& layout, std::string_view precision) {
  if (HeadPrecision(layout) == precision) return true;
  if (layout.layer_precisions_size() == 0) return layout.precision() == precision;
  return HasIn(AttentionShares(layout), precision) || HasIn(MlpShares(layout), precision);
}

double RoundedShare(const v1::Layout& layout) {
  if (!RoundsWeights(layout)) return 0;
  if (layout.layer_precisions_size() == 0) return 1;
  // Of a layer's weights, one in three is its attention's as a rule.
  constexpr double kAttention = 1.0 / 3;
  const std::string& format = layout.parameter_format();
  return kAttention * RoundedOf(AttentionShares(layout), format) +
         (1 - kAttention) * RoundedOf(MlpShares(layout), format);
}

}  // namespace terrace
