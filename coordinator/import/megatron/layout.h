// What flags of Megatron-LM that are read together say of the layout: recomputation, interleaved
// stages, stages of unequal length.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "coordinator/import/draft.h"
#include "coordinator/import/megatron/line.h"

namespace terrace {

// Whether SetMegatronLayout() accounts for the flag.
bool IsMegatronLayoutFlag(std::string_view flag);

// Accounts for each of them that is given. INVALID_ARGUMENT names the flag and its rule.
absl::Status SetMegatronLayout(const MegatronLine& line, SpecDraft* draft);

}  // namespace terrace
