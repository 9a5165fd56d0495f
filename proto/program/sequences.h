// The names of a program's sequences. One optimizer step is "train", with samples as long as
// StepRules.sequence_length; a job with buckets has one more for each shorter length,
// "train/<length>", over the same state: which of them runs is decided step by step.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "proto/v1/program.pb.h"

namespace terrace {

inline constexpr std::string_view kTrain = "train";

// One of those that train.
bool IsTrain(std::string_view sequence);
// Of samples of `length` tokens in a job whose longest have `longest`.
std::string TrainName(int64_t length, int64_t longest);
// Tokens of each sample of the sequence.
int64_t LengthOf(const v1::StepRules& rules, const v1::Sequence& sequence);

}  // namespace terrace
