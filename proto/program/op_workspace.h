// The scratch that a computation of a program must bring, by where it runs: on the host for those
// of HOST_COMPUTE streams, on Program.device for all others.
//
// Pure. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/op.h"

namespace terrace {

struct WorkspaceTarget {
  std::string_view device;  // as Program.device
  bool on_host = false;     // operands lie on HOST
  int threads = 1;          // of the rank
};

// REQUIRES: CheckShapes is empty.
int64_t WorkspaceBytes(const WorkspaceTarget& target, kernels::Op op, const kernels::OpAttrs& attrs,
                       std::span<const kernels::TensorShape> operands);

}  // namespace terrace
