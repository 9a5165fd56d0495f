// Training on pairs of answers (train.preference): what does not go with it.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coordinator/spec/reader.h"

namespace terrace {

// Leaves no train.preference where the text has none; with one, samples are documents. What depends
// on the model's tensors is in layout/rules.h.
void ValidatePreference(SpecReader& reader, v1::JobSpec* spec);

}  // namespace terrace
