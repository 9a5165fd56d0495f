// The checker's sixth part: what a step of training must do. Every weight is updated from a
// gradient that holds each micro-batch equally often and was summed over exactly the ranks whose
// data it lacks; the norm counts every element of the gradient once; every micro-batch is loaded
// once.
//
// How: the content of bytes is followed through each sequence (flow.h), and whoever relies on it is
// asked here: the optimizer, the norms, the loss, and what leaves the step.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/check/instruction/instructions.h"
#include "proto/check/value/flow.h"
#include "proto/v1/program.pb.h"

namespace terrace::check {

// What one stage knows and the others must agree with (joint.h).
struct StageFacts {
  // Whether what stages send each other is split over the axis TENSOR, as far as this stage can
  // tell: one that trains nothing may be right either way.
  bool transfers_in_parts = false, transfers_either_way = false;
  // Weights whose gradient was summed over stages: the group, and which part of its squares this
  // stage counts.
  struct Shared {
    int group = -1;
    double squares = 0;
    std::string where;  // who relies on it
  };
  // What one of the sequences that train (proto/program/sequences.h) does.
  struct Training {
    bool loads_tokens = false, loads_targets = false;
    std::map<std::string, Shared> shared;
  };
  std::map<std::string, Training> training;             // by sequence
  std::map<std::string, std::vector<StageSum>> sums;    // by sequence, in order
  std::map<std::string, PairTransfers> sent, received;  // by sequence
};

// All sequences of one program. REQUIRES: the parts before passed (list order is then the order of
// all accesses that conflict).
absl::StatusOr<StageFacts> CheckTraining(const v1::Program& program,
                                         const std::vector<CheckedSequence>& sequences);

}  // namespace terrace::check
