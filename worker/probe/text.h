// A measured profile for people. Pure.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "proto/v1/hardware.pb.h"

namespace terrace {

// Lines of a name, a figure and where it was taken; ends with a newline.
std::string ProfileText(const v1::HardwareProfile& profile);

}  // namespace terrace
