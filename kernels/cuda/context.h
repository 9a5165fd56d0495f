// How a CUDA kernel is called: as on every backend (kernels/kernel.h), with a stream and a device
// instead of threads. A call only launches; what it says is whether the launch was accepted.
//
// Indices that come from data (tokens, targets, rows) cannot be checked before the launch: a kernel
// that meets one outside its table takes it for absent and notes the first such position in
// `faults`, which the rank reads when the step has ended (device.h).
//
// Thread rule: one context a stream; calls on one context come from one thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kernel.h"
#include "kernels/op.h"
#include "kernels/tensor_view.h"

struct CUstream_st;

namespace terrace::kernels::cuda {

class GemmLibrary;

// In device memory; kNoFault, or the op and the smallest position with a bad index.
using Fault = unsigned long long;
inline constexpr Fault kNoFault = ~0ull;
inline constexpr int kFaultPositionBits = 56;

struct Context {
  CUstream_st* stream = nullptr;
  const GemmLibrary* gemms = nullptr;
  Fault* faults = nullptr;
  // Device memory, at least cuda::WorkspaceBytes(...) large, 256-byte aligned, the stream's own
  // while the kernel runs.
  std::byte* workspace = nullptr;
  int64_t workspace_bytes = 0;
  int multiprocessors = 1;  // blocks that stay for several tasks: one on each
  // The device has sm_90a's matrix instructions, and attention is to use them.
  bool wgmma_attention = false;
};

using Kernel = Status (*)(const OpAttrs& attrs, std::span<const TensorView> operands,
                          const Context& context);

}  // namespace terrace::kernels::cuda
