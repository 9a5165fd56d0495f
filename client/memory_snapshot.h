// The memory of one execution of "train" as a snapshot that PyTorch's viewer opens
// (pytorch.org/memory_viz, torch.cuda._memory_viz). Each arena is a segment of a device of its own:
// stages one after the other, in each its tiers. The trace holds one allocation and one release a
// step buffer, in list order, of a loop those of a few iterations; the segments are the state at
// the end of the step. Where PyTorch shows a stack, we show the buffer's name and class and the
// instruction that makes it.
//
// In caching mode the device also has the allocator's segments, and the trace shows its blocks: the
// rank launches instructions in list order, so what it did can be replayed.
//
// Pure.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// INVALID_ARGUMENT when a program contradicts itself.
absl::StatusOr<std::string> MemorySnapshot(std::span<const v1::Program> programs);

}  // namespace terrace
