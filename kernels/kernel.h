// How a kernel is called, on every backend: views in operand order (op.h), attributes, a context;
// status out.
//
// A kernel does not allocate, log, or check shapes again: the program was checked before it runs.
// Its result depends on its inputs alone, not on the number of threads, unless its op says
// otherwise.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kernels/op.h"
#include "kernels/tensor_view.h"

namespace terrace::kernels {

// Its own small type, so that kernels build with nothing but a compiler.
struct Status {
  std::string message;  // empty: fine
  bool ok() const { return message.empty(); }
};

// One per rank and stream. The workspace is valid during one call, at least WorkspaceBytes(...)
// large, 64-byte aligned.
struct Context {
  int threads = 1;
  std::byte* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

using Kernel = Status (*)(const OpAttrs& attrs, std::span<const TensorView> operands,
                          const Context& context);

}  // namespace terrace::kernels
