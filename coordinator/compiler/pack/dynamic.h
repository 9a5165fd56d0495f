// Turns a placed program into one in caching mode, of either kind: step buffers on the device lose
// their offsets, and the arena ends behind the last persistent one. The lower bound stays that of
// the placement: what no allocator beats. Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "proto/v1/program.pb.h"

namespace terrace {

// `allocator`: "caching", "expandable". REQUIRES: PlaceBuffers succeeded.
void MakeDynamic(const std::string& allocator, v1::Program* program);

}  // namespace terrace
