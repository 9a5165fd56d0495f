// The numbers that Megatron-LM takes where a command line leaves them out and that differ here, so
// that the imported job trains as Megatron-LM would. Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coordinator/import/draft.h"
#include "coordinator/import/megatron/line.h"

namespace terrace {

// After all flags were imported.
void SetMegatronDefaults(const MegatronLine& line, SpecDraft* draft);

}  // namespace terrace
