// What a step finds in the last-level cache: of each instruction, the part of its operands that the
// step, or the one before it, has touched so recently that the cache still holds it.
//
// What was touched longest ago makes room for what comes. So bytes are found as long as others have
// been touched since, each counted once, that together with them fill no more than the cache. A
// step of a small model comes round within the cache and finds all; a larger one finds what it has
// just written. What a copy between tiers has written is not in the cache: streaming stores and
// drives go past it. Two addresses of one page (Arena.aliases) count as two.
//
// Pure. Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "proto/v1/program.pb.h"

namespace terrace {

// By instruction, 0 to 1, of a step that follows others like it; all 0 for a cache of 0 bytes.
// Takes a sequence without loops, instructions in their order, and addresses of a program whose
// buffers are placed; buffers that get their places while the step runs are held apart.
std::vector<double> CachedShares(const v1::Program& program, const v1::Sequence& sequence,
                                 int64_t cache_bytes);

}  // namespace terrace
