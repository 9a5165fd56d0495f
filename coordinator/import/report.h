// What an import did, for people and for programs. Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "coordinator/import/draft.h"

namespace terrace {

// A table of all settings, those that need a person's eye last, then remarks and problems.
std::string ImportText(const SpecDraft& draft, const std::vector<std::string>& problems);

// {"spec_yaml", "valid", "problems": [], "settings": [{"setting", "value", "fate", "target",
// "note"}], "remarks": []}
std::string ImportJson(const SpecDraft& draft, const std::vector<std::string>& problems);

}  // namespace terrace
