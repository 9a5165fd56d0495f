// Turns a placed program into one in caching mode: step buffers on the device lose their offsets,
// and the arena ends behind the last persistent one. The lower bound stays that of the placement:
// what no allocator beats. Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "proto/v1/program.pb.h"

namespace terrace {

// REQUIRES: PlaceBuffers succeeded.
void MakeDynamic(v1::Program* program);

}  // namespace terrace
