// The table of keys in sections, each in a file of its own; keys.h puts them together. Thread-safe:
// no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "coordinator/spec/keys.h"

namespace terrace {

inline constexpr double kMaxBytes = 1e18;

std::vector<SpecKey> DataKeys();
std::vector<SpecKey> TrainingKeys();
std::vector<SpecKey> OptimizerKeys();
std::vector<SpecKey> FormatKeys();
std::vector<SpecKey> LayoutKeys();
std::vector<SpecKey> ResourceKeys();
std::vector<SpecKey> JobKeys();

}  // namespace terrace
