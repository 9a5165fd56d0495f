// The course of training: how many steps there are, written as steps or as tokens, how long the
// warm-up is, when it ends early and which checkpoints that needs.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coordinator/spec/reader.h"

namespace terrace {

// Sets train.steps and train.schedule.warmup_steps from what was written in their place, and tells
// `reader` what is wrong. Comes before whatever reads them.
void ValidateCourse(SpecReader& reader, v1::JobSpec* spec);

}  // namespace terrace
