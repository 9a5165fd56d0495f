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
  bool HasFp8() const { return device_->CheckFp8().ok(); }
  // A kernel has trapped, and every later call of this process fails.
  bool Lost() const;

  bool has_wgmma() const { return device_->has_wgmma(); }

  // `misaligned`: operands start one element behind a whole 16 bytes. `wgmma_attention`: attention
  // as sm_90a alone can; otherwise as every device can. Valid as long as this object.
  Backend Runner(bool misaligned, bool wgmma_attention);

 private:
  Status Run(Op op, const OpAttrs& attrs, std::span<const TensorView> operands, bool misaligned,
             bool wgmma_attention);

  std::unique_ptr<cuda::Device> device_;
};

}  // namespace terrace::kernels::conformance
