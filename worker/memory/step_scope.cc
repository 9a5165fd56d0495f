// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/step_scope.h"

namespace terrace {
namespace {

// Per thread, not shared: the one place where a global is the right owner, because malloc has no
// argument to pass it in.
thread_local int step_depth = 0;
thread_local int library_depth = 0;

}  // namespace

bool AllocationIsForbidden() { return step_depth > 0 && library_depth == 0; }

StepScope::StepScope() { ++step_depth; }
StepScope::~StepScope() { --step_depth; }

LibraryScope::LibraryScope() { ++library_depth; }
LibraryScope::~LibraryScope() { --library_depth; }

}  // namespace terrace
