// The CUDA backend as the conformance suite calls one: operands in host memory, copied to the GPU
// and back around each op, with fences around each of them and around the workspace.
//
// Owns the device. Used by one thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/device.h"
#include "tests/conformance/op_judge.h"

namespace terrace::kernels::conformance {

class GpuBackend {
 public:
  // An error in one line where there is no GPU to run on.
  Status Open();
  const std::string& device_name() const { return device_->name(); }
  // A kernel has trapped, and every later call of this process fails.
  bool Lost() const;

  // `misaligned`: operands start one element behind a whole 16 bytes. Valid as long as this object.
  Backend Runner(bool misaligned);

 private:
  Status Run(Op op, const OpAttrs& attrs, std::span<const TensorView> operands, bool misaligned);

  std::unique_ptr<cuda::Device> device_;
};

}  // namespace terrace::kernels::conformance
