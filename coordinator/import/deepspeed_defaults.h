// The numbers that DeepSpeed takes where a configuration leaves them out and that differ here, so
// that the imported job trains as DeepSpeed would. Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include "coordinator/import/draft.h"

namespace terrace {

// After all settings were imported. What is "auto" stays left out.
void SetDeepSpeedDefaults(const nlohmann::json& config, SpecDraft* draft);

}  // namespace terrace
