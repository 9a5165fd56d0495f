// How the bytes of a program's arenas divide into classes at the moment of the peak of "train",
// tier by tier: persistent buffers always, step buffers that live then, the rest (alignment and
// packing) without a class. Each tier has its own peak. Lives are counted in list order, those of
// loops over a few iterations. Pure.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "proto/v1/job.pb.h"
#include "proto/v1/program.pb.h"
#include "proto/v1/worker.pb.h"

namespace terrace {

// The lines of a tier sum to the bytes of its arena.
std::vector<v1::ClassBytes> MemoryClasses(const v1::Program& program);

// What a caching allocator reports, of the planned device arena at its peak: the buffers that live
// then are the allocated blocks, and what lies between them is free.
v1::AllocatorStats PlannedStats(const v1::Program& program);

}  // namespace terrace
