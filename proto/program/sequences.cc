// SPDX-License-Identifier: Apache-2.0
#include "proto/program/sequences.h"

#include "absl/strings/str_cat.h"
#include "base/strings.h"

namespace terrace {

bool IsTrain(std::string_view sequence) {
  return sequence == kTrain || sequence.starts_with("train/");
}

std::string TrainName(int64_t length, int64_t longest) {
  return length == longest ? std::string(kTrain) : absl::StrCat(Absl(kTrain), "/", length);
}

int64_t LengthOf(const v1::StepRules& rules, const v1::Sequence& sequence) {
  return sequence.sequence_length() > 0 ? sequence.sequence_length() : rules.sequence_length();
}

}  // namespace terrace
