// The model that a command line of Megatron-LM describes, as a Hugging Face config: with RMSNorm,
// SwiGLU and rotary positions llama's, with LayerNorm, GELU and learned positions gpt2's.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "coordinator/import/draft.h"
#include "coordinator/import/megatron_line.h"

namespace terrace {

// Sets model.config; a remark says why where the model is of neither family.
absl::Status SetMegatronModel(const MegatronLine& line, SpecDraft* draft);

}  // namespace terrace
