// What is changed about the model before it is trained: low-rank adapters.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coordinator/spec/reader.h"

namespace terrace {

// Sets model.lora.alpha where it was not written, leaves no model.lora without a rank, and tells
// `reader` of keys that nothing reads then and of groups that would train the model by the way.
// What only the model's tensors show to be wrong is found by coordinator/model/lora.h.
void ValidateModel(SpecReader& reader, v1::JobSpec* spec);

}  // namespace terrace
