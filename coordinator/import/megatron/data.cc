// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/megatron/data.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace terrace {
namespace {

// Prefixes of .bin and .idx pairs, each perhaps after a weight.
void Paths(const MegatronWords& flag, std::string_view key, SpecDraft* draft) {
  std::vector<std::string> paths, weights;
  for (const std::string& word : flag.values) {
    double weight = 0;
    if (absl::SimpleAtod(word, &weight) && weights.size() == paths.size()) {
      weights.push_back(word);
    } else {
      paths.push_back(word.ends_with(".idx") ? word : word + ".idx");
    }
  }
  const std::string setting = "--" + flag.name;
  if (paths.empty()) {
    draft->Absent(setting, flag.value(), absl::StrCat("names no file; set ", std::string(key)));
    return;
  }
  if (paths.size() == 1) {
    draft->MappedText(setting, flag.value(), key, paths[0]);
  } else {
    draft->MappedTexts(setting, flag.value(), key, paths);
  }
  // One file is all of the mixture, whatever its weight.
  if (weights.empty() || paths.size() == 1) return;
  draft->Absent(
      setting + " (weights)", absl::StrJoin(weights, " "),
      "files have no weights here: each counts by its size, so the mixture is another one; "
      "repeat a path, or cut files, to come near these shares");
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
     "positions run on across documents in data.samples: stream; with data.samples: documents each "
     "starts at 0, in a row of its own"},
    {"reset-attention-mask",
     "attention crosses the ends of documents in data.samples: stream; with data.samples: "
     "documents "
     "none sees another, each in a row of its own"},
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
    Paths(flag, "data.train", draft);
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
