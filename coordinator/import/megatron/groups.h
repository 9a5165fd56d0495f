// Flags of Megatron-LM by the beginnings of their names, where a whole part of it has one fate, and
// old names that it refuses. What a table of single flags (flags.h) has comes before.
//
// Thread-safe: constants.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "coordinator/import/megatron/flags.h"

namespace terrace {

// `flag` is the beginning of the names.
const std::vector<MegatronFlag>& MegatronGroups();

struct MegatronOldName {
  std::string_view flag;
  std::string_view instead;
};
const std::vector<MegatronOldName>& MegatronOldNames();

}  // namespace terrace
