// What a path of a DeepSpeed configuration is: a key that is mapped, one that is known otherwise, a
// section, one that never was. Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "coordinator/import/deepspeed_keys.h"
#include "coordinator/import/deepspeed_mappings.h"

namespace terrace {

struct DeepSpeedKind {
  DeepSpeedMapping mapping = nullptr;
  const KnownKey* known = nullptr;      // without a counterpart here
  const KnownKey* never_was = nullptr;  // circulates, and DeepSpeed refuses it
  bool section = false;                 // known keys lie below it
  bool parameter = false;               // of an optimizer or a schedule, which have their own
};

DeepSpeedKind KindOf(std::string_view path);

}  // namespace terrace
