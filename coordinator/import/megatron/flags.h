// What becomes of each flag of Megatron-LM that needs no arithmetic: the key it sets, or why
// nothing is to be set.
//
// Thread-safe: constants.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "coordinator/import/draft.h"

namespace terrace {

struct MegatronFlag {
  std::string_view flag;  // without the two dashes
  Fate fate;
  std::string_view target;  // of kMapped: the key, which gets the flag's value, or "key: value"
  std::string_view note;
};

const std::vector<MegatronFlag>& MegatronFlags();

// Flags that describe the model; the model's config is made of them (model.h).
const std::vector<std::string_view>& MegatronModelFlags();

}  // namespace terrace
