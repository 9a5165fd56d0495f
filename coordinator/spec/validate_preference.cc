// SPDX-License-Identifier: Apache-2.0
#include "coordinator/spec/validate_preference.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

bool IsWritten(const SpecReader& reader) {
  const auto has = [&reader](const char* key) {
    return reader.Has(absl::StrCat("train.preference", key));
  };
  return has("") || has(".loss") || has(".beta") || has(".label_smoothing");
}

void CheckData(SpecReader& reader, v1::DataSpec* data) {
  if (!reader.Has("data.samples")) data->set_samples("documents");
  if (data->samples() != "documents") {
    reader.Problem("data.samples", data->samples(),
                   "documents with train.preference: each answer has a row of its own",
                   "data.samples documents");
  }
  if (!data->buckets().empty()) {
    reader.Problem("data.buckets", "lengths",
                   "left out with train.preference: all answers have rows of "
                   "data.sequence_length");
  }
  constexpr int64_t kMaxLength = 1 << 19;  // both rows of a pair are counted in 21 bits
  if (data->sequence_length() > kMaxLength) {
    reader.Problem("data.sequence_length", absl::StrCat(data->sequence_length()),
                   absl::StrCat("at most ", kMaxLength, " with train.preference"),
                   absl::StrCat(kMaxLength));
  }
  if (data->loss_on() == "all") {
    reader.Problem("data.loss_on", "all",
                   "answers with train.preference: the prompt is the same in both",
                   "data.loss_on answers");
  }
}

}  // namespace

void ValidatePreference(SpecReader& reader, v1::JobSpec* spec) {
  v1::TrainSpec* train = spec->mutable_train();
  if (!IsWritten(reader)) return train->clear_preference();
  CheckData(reader, spec->mutable_data());
  if (train->global_batch() % 2 != 0) {
    reader.Problem("train.global_batch", absl::StrCat(train->global_batch()),
                   "even with train.preference: two sequences are a pair",
                   absl::StrCat(train->global_batch() + 1));
  }
  for (const auto& [key, value] : {std::pair("train.label_smoothing", train->label_smoothing()),
                                   std::pair("train.z_loss", train->z_loss())}) {
    if (value == 0) continue;
    reader.Problem(key, absl::StrCat(value),
                   "left out with train.preference, whose loss is of pairs and not of tokens",
                   "train.preference.label_smoothing");
  }
  const v1::LoraSpec& lora = spec->model().lora();
  if (lora.init().starts_with('/')) {
    reader.Problem("model.lora.init", lora.init(),
                   "left out with train.preference: the reference is the model without its "
                   "adapters, so what that adapter has learnt must be in the model",
                   "terrace ckpt merge, and its result as model.init");
  }
  if (lora.rank() > 0 || lora.init().starts_with('/')) return;
  reader.Problem("train.preference", "a job without adapters",
                 "accompanied by model.lora: the reference that answers are compared with is the "
                 "model without its adapters, and there is no second copy of a model that is "
                 "trained itself",
                 "model.lora: {rank: 16}");
}

}  // namespace terrace
