// The precision that a DeepSpeed configuration asks for. Its switches stand in three sections, may
// be left to the trainer ("auto"), and must not contradict each other.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/status/status.h"
#include "coordinator/import/draft.h"

namespace terrace {

// One of the keys that SetDeepSpeedPrecision accounts for.
bool IsPrecisionKey(std::string_view path);

// Sets train.precision, or leaves it undecided with a remark. INVALID_ARGUMENT when bf16 and fp16
// are both on, or a switch is none.
absl::Status SetDeepSpeedPrecision(const nlohmann::json& config, SpecDraft* draft);

}  // namespace terrace
