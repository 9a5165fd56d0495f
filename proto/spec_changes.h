// What two specs of a job differ in, as far as it shows in the numbers that training gives: a job
// that resumes says what changed since its checkpoint.
//
// Layout, resources and names are no part of it: results do not depend on them.
//
// Pure. Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "proto/v1/job.pb.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

struct SpecChange {
  std::string key;  // "train.global_batch", "model.config.rope_theta"
  std::string then, now;
  // The model is another, or the samples are not those that would have come next: what follows is
  // no continuation.
  bool breaks = false;
};

// Pins the formats that change the numbers to those of the layout that was chosen, so that the
// checkpoint of a job whose spec left a choice (formats.allow) tells what its numbers came from.
void PinFormats(const v1::Layout& layout, v1::JobSpec* spec);

std::vector<SpecChange> SpecChanges(const v1::JobSpec& then, const v1::JobSpec& now);

// "train.global_batch from 8 to 16, train.seed from 1 to 2"; of all, or of those that break.
std::string DescribeChanges(const std::vector<SpecChange>& changes, bool breaking_only);

// Why a job does not go on from that checkpoint, and the ways out; empty: nothing forbids it.
std::string WhyNoContinuation(const std::string& checkpoint, const std::vector<SpecChange>& changes,
                              const v1::JobSpec& now);

}  // namespace terrace
