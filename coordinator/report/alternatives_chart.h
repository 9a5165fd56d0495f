// The layouts that were compared as points: device memory against the time of a step. The chosen
// one is black; those than which nothing that fits is both faster and smaller are blue and joined
// by a line; those that do not fit are crosses. Numbers are those of the list beside the picture.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/prepare/prepare.h"
#include "proto/drawing/svg.h"

namespace terrace {

struct Candidate {
  int number = 0;      // 0: the chosen one
  std::string layout;  // what differs from the chosen one; of that one, all
  double step_seconds = 0;
  int64_t device_bytes = 0;
  int64_t host_bytes = 0, nvme_bytes = 0;
  bool fits = false;
  bool pareto = false;
  bool compiled = false;
  std::string note;
};
// The chosen one, then the others by the time of a step.
std::vector<Candidate> CandidatesOf(const v1::Plan& plan);

Picture AlternativesChart(absl::Span<const Candidate> candidates, int64_t device_limit_bytes);

}  // namespace terrace
