// The rule that the step loop allocates nothing, made visible to a test that replaces malloc and
// operator new.
//
// A thread is inside a StepScope while it executes instructions. Calls into a library that keeps
// its own books on the heap (Gloo builds an operation) are wrapped in a LibraryScope: the
// exceptions are named in the code, one by one, and everything else, kernels included, is held to
// the rule. Costs two thread-local counters.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace terrace {

// True while the calling thread executes instructions of ours.
bool AllocationIsForbidden();

class StepScope {
 public:
  StepScope();
  ~StepScope();
  StepScope(const StepScope&) = delete;
  StepScope& operator=(const StepScope&) = delete;
};

class LibraryScope {
 public:
  LibraryScope();
  ~LibraryScope();
  LibraryScope(const LibraryScope&) = delete;
  LibraryScope& operator=(const LibraryScope&) = delete;
};

}  // namespace terrace
