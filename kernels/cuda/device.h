// One GPU as the CUDA backend uses it: chosen, named, with the stream and the libraries that
// kernels need.
//
// Opening says in one line what is missing: the driver, a device, or one that is new enough.
// Owns the stream, the library handles and the fault word. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda/gemm.h"

namespace terrace::kernels::cuda {

class Device {
 public:
  // "cuda: no driver ...", "cuda: no device ...": a sentence for people.
  static Status Open(int ordinal, std::unique_ptr<Device>* device);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const std::string& name() const { return name_; }  // "NVIDIA H100 80GB HBM3, sm_90, 132 SMs"
  int64_t memory_bytes() const { return memory_bytes_; }

  // On the device's stream, with this scratch.
  Context MakeContext(std::byte* workspace, int64_t workspace_bytes) const;
  // Waits for the stream; then the first error that it met, a bad index among them, which is
  // forgotten.
  Status Finish();

 private:
  Device() = default;
  Status Start(int ordinal);

  std::string name_;
  int64_t memory_bytes_ = 0;
  CUstream_st* stream_ = nullptr;
  Fault* faults_ = nullptr;
  std::unique_ptr<GemmLibrary> gemms_;
};

// "embedding: the index at position 17 is outside its table"; fine for kNoFault.
Status DescribeFault(Fault fault);

}  // namespace terrace::kernels::cuda
