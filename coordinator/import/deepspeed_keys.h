// The DeepSpeed keys that have nothing to be set here: those that Terrace does by itself, and those
// that it does not do. Names as in DeepSpeed's documentation of its configuration.
//
// Thread-safe: constants.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "coordinator/import/draft.h"

namespace terrace {

struct KnownKey {
  std::string_view path;  // ends with ".*": all below it
  Fate fate;              // kAutomatic or kAbsent
  std::string_view note;
};

// Sorted by nothing; the first that matches counts.
const std::vector<KnownKey>& DeepSpeedKeysWithoutCounterpart();

// Words that circulate as keys, in any section, and that DeepSpeed itself refuses; with what is
// meant.
const std::vector<KnownKey>& DeepSpeedKeysThatNeverWere();

}  // namespace terrace
