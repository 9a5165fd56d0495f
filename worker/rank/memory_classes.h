// How the bytes of a program's arenas divide into classes at the moment of the peak of "train":
// persistent buffers always, step buffers that live then, the rest (alignment and packing) without
// a class. Pure.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "proto/v1/program.pb.h"
#include "proto/v1/worker.pb.h"

namespace terrace {

// The lines sum to the bytes of all arenas.
std::vector<v1::ClassBytes> MemoryClasses(const v1::Program& program);

}  // namespace terrace
