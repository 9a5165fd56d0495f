// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/megatron/data.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace terrace {
namespace {

constexpr char kTrain[] = "data.train";

// Prefixes of .bin and .idx pairs, each perhaps after a weight.
struct Blend {
  std::vector<std::string> paths, weights;
};

Blend BlendOf(const MegatronWords& flag) {
  Blend blend;
  for (const std::string& word : flag.values) {
    double weight = 0;
    if (absl::SimpleAtod(word, &weight) && blend.weights.size() == blend.paths.size()) {
      blend.weights.push_back(word);
    } else {
      blend.paths.push_back(word.ends_with(".idx") ? word : word + ".idx");
    }
  }
  return blend;
}

// Nothing where a path has no weight, or one that is no share of anything. Megatron-LM takes
// sources of weight 0 and never reads them.
std::vector<SpecDraft::WeightedPath> SourcesOf(const Blend& blend) {
  std::vector<SpecDraft::WeightedPath> sources;
  if (blend.weights.size() != blend.paths.size()) return {};
  for (size_t i = 0; i < blend.paths.size(); ++i) {
    double weight = 0;
    if (!absl::SimpleAtod(blend.weights[i], &weight) || !std::isfinite(weight) || weight < 0)
      return {};
    if (weight > 0) sources.push_back({blend.paths[i], weight});
  }
  return sources;
}

// A spec takes no source whose share is below this.
constexpr double kShareMin = 1e-5;

void LeaveOutTraces(const std::string& setting, std::vector<SpecDraft::WeightedPath>* sources,
                    SpecDraft* draft) {
  double sum = 0;
  for (const SpecDraft::WeightedPath& source : *sources) sum += source.weight;
  std::erase_if(*sources, [&](const SpecDraft::WeightedPath& source) {
    if (source.weight >= kShareMin * sum) return false;
    draft->Absent(absl::StrCat(setting, " (", source.path, ")"), absl::StrCat(source.weight),
                  absl::StrCat("a source has at least ", kShareMin, " of all samples here"));
    return true;
  });
}

void Paths(const MegatronWords& flag, std::string_view key, SpecDraft* draft) {
  const Blend blend = BlendOf(flag);
  const std::string setting = "--" + flag.name;
  if (blend.paths.empty()) {
    draft->Absent(setting, flag.value(), absl::StrCat("names no file; set ", std::string(key)));
    return;
  }
  if (blend.paths.size() == 1) {  // all of the mixture, whatever its weight
    draft->MappedText(setting, flag.value(), key, blend.paths[0]);
    return;
  }
  std::vector<SpecDraft::WeightedPath> sources = SourcesOf(blend);
  if (key == kTrain && !sources.empty()) {
    LeaveOutTraces(setting, &sources, draft);
    draft->MappedSources(setting, flag.value(), key, sources);
    return;
  }
  draft->MappedTexts(setting, flag.value(), key, blend.paths);
  if (blend.weights.empty()) return;
  draft->Absent(setting + " (weights)", absl::StrJoin(blend.weights, " "),
                key == kTrain
                    ? "each path needs a weight of 0 or more; without them each counts by its size"
                    : "files of data.validation have no weights: they are evaluated one after the "
                      "other");
}

void Split(const MegatronWords& flag, SpecDraft* draft) {
  const std::vector<std::string> words = absl::StrSplit(flag.value(), ',');
  double parts[3] = {0, 0, 0};
  for (size_t i = 0; i < std::min<size_t>(3, words.size()); ++i) {
    if (!absl::SimpleAtod(words[i], &parts[i])) parts[i] = 0;
  }
  const double all = parts[0] + parts[1] + parts[2];
  if (all <= 0 || parts[1] <= 0) {
    draft->Automatic("--split", flag.value(), "data.validation_fraction holds out 5 %");
  } else {
    draft->Mapped("--split", flag.value(), "data.validation_fraction", absl::StrCat(parts[1] / all),
                  "test data are not set aside");
  }
}

struct Documents {
  std::string_view flag;
  std::string_view note;
};
constexpr Documents kDocuments[] = {
    {"reset-position-ids",
     "positions run on across documents in data.samples: stream; with data.samples: packed those "
     "of "
     "each start at 0"},
    {"reset-attention-mask",
     "attention crosses the ends of documents in data.samples: stream; with data.samples: packed "
     "none sees another"},
    {"eod-mask-loss",
     "the token behind an end of text counts in data.samples: stream; with data.samples: documents "
     "nothing is predicted across the end of a document"},
};

}  // namespace

bool ImportMegatronData(const MegatronWords& flag, SpecDraft* draft) {
  const std::string setting = "--" + flag.name;
  for (const Documents& documents : kDocuments) {
    if (flag.name != documents.flag) continue;
    draft->Absent(setting, flag.value(), std::string(documents.note));
    return true;
  }
  if (flag.name == "data-path" || flag.name == "train-data-path") {
    Paths(flag, kTrain, draft);
  } else if (flag.name == "valid-data-path") {
    Paths(flag, "data.validation", draft);
  } else if (flag.name == "split") {
    Split(flag, draft);
  } else if (flag.name == "tokenizer-type") {
    draft->Automatic(setting, flag.value(),
                     "read off the tokenizer's file; .idx data are tokens already");
  } else if (flag.name == "tokenizer-model") {
    draft->MappedText(setting, flag.value(), "data.tokenizer", flag.value());
  } else {
    return false;
  }
  return true;
}

}  // namespace terrace
