// The sequences of a program that train, by the length of their samples
// (proto/program/sequences.h): what each is called and how much it computes.
//
// Thread-safe after construction.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "proto/v1/program.pb.h"

namespace terrace {

struct TrainSequence {
  std::string name = "train";
  double flops = 0;  // model FLOPs of this rank's share of one step
};

class TrainSequences {
 public:
  explicit TrainSequences(const v1::Program& program);

  // The one for samples of `length` tokens. REQUIRES: the program has it.
  const TrainSequence& Of(int64_t length) const { return by_length_.at(length); }
  bool Has(int64_t length) const { return by_length_.contains(length); }

 private:
  std::map<int64_t, TrainSequence> by_length_;
};

}  // namespace terrace
