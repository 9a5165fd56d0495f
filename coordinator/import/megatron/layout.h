// Reads the flags of Megatron-LM that say only together what the layout is: recomputation,
// interleaved stages, and stages of unequal length.
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

// True for flags that SetMegatronLayout() accounts for.
bool IsMegatronLayoutFlag(std::string_view flag);

// Accounts for each of them that is given. INVALID_ARGUMENT names the flag and its rule.
absl::Status SetMegatronLayout(const MegatronLine& line, SpecDraft* draft);

}  // namespace terrace
