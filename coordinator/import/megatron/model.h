// The model that a command line of Megatron-LM describes, as a Hugging Face config: with RMSNorm,
// SwiGLU and rotary positions that of llama, mistral, qwen2 or qwen3 (by biases, norms of queries
// and keys, and window), with LayerNorm, GELU and learned positions gpt2's.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "coordinator/import/draft.h"
#include "coordinator/import/megatron/line.h"

namespace terrace {

// Sets model.config. INVALID_ARGUMENT names every flag of a model that it does not make: none
// is dropped.
absl::Status SetMegatronModel(const MegatronLine& line, SpecDraft* draft);

}  // namespace terrace
