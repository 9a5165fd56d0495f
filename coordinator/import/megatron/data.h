// The flags of Megatron-LM that say what is trained on: paths with or without weights, the split,
// the tokenizer, and how documents are kept apart. Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coordinator/import/draft.h"
#include "coordinator/import/megatron/line.h"

namespace terrace {

// Whether `flag` is one of them; then it is accounted for in `draft`.
bool ImportMegatronData(const MegatronWords& flag, SpecDraft* draft);

}  // namespace terrace
