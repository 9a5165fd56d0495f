// seccomp: system calls that no rank needs, and that faults of kernels were reached by, fail with
// EPERM. A list of what is refused, because libraries of drivers change what they need.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "absl/status/statusor.h"

namespace terrace {

struct RefusedCall {
  long number;
  const char* name;
  const char* why;
};

// The list. io_uring_setup is refused besides, where a job does not offload to NVMe, and so is
// clone where it makes a process instead of a thread; clone3 does not exist (ENOSYS), so that the C
// library uses clone, whose flags can be seen.
std::span<const RefusedCall> RefusedCalls();

// Of the kernel, for this machine's calls.
bool HasSeccomp();

struct AllowedCalls {
  bool io_uring = false;
  bool programs = false;  // execve
  bool sockets = true;    // new ones
};

// From here on, for this thread and what it starts. False where the kernel has no seccomp, or this
// machine's calls are not known: then nothing has changed. It switches on no mitigation of the
// processor, which would slow the arithmetic down. REQUIRES: no_new_privs, or root.
absl::StatusOr<bool> RefuseCalls(const AllowedCalls& allowed);

}  // namespace terrace
