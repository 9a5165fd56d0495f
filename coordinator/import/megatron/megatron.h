// From the command line of a Megatron-LM training script to a job spec. Flags as in
// megatron/training/arguments.py of Megatron-LM, and --enable-zero-bubble of its zero-bubble fork.
//
// In: the flags as one text, quoted and continued over lines as a shell script has them. Out: the
// draft; where the flags describe the model, its config is part of it. Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "coordinator/import/deepspeed.h"

namespace terrace {

// INVALID_ARGUMENT when the text has no flags, a quote is left open or a number is none.
absl::StatusOr<SpecDraft> ImportMegatron(std::string_view flags, const ImportContext& context);

}  // namespace terrace
