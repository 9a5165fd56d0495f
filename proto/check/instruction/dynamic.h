// The checker's part for programs in caching mode: what is left to say of memory that is given out
// while the program runs. The arena holds the persistent buffers and nothing else, and with the
// segments that the allocator will reserve, replayed exactly, it stays inside the budget.
//
// Order and reads of each buffer are checked as in planned mode; only bytes shared by two buffers
// are the allocator's business. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "proto/v1/program.pb.h"

namespace terrace::check {

// "planned", "caching", "expandable" or empty.
absl::Status CheckAllocator(const v1::Program& program);

// Nothing to say in planned mode. REQUIRES: the instructions of all sequences passed.
absl::Status CheckDynamic(const v1::Program& program);

}  // namespace terrace::check
