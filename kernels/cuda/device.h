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
#include <vector>

#include "kernels/cuda/gemm.h"

namespace terrace::kernels::cuda {

struct DeviceInfo {
  std::string name;  // the driver's: "NVIDIA H100 80GB HBM3"
  int64_t memory_bytes = 0;
  int major = 0, minor = 0;  // compute capability
  std::string uuid;          // 32 hexadecimal digits
};
// Those that a process here may use, without starting anything on them. "cuda: no NVIDIA driver
// ...", "cuda: no NVIDIA device ...": a sentence for people.
Status ListDevices(std::vector<DeviceInfo>* devices);

// "13.0": the CUDA version that the driver is for; empty without one.
std::string DriverVersion();

class Device {
 public:
  // "cuda: no driver ...", "cuda: no device ...": a sentence for people.
  static Status Open(int ordinal, std::unique_ptr<Device>* device);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const std::string& name() const { return name_; }  // "NVIDIA H100 80GB HBM3, sm_90, 132 SMs"
  int64_t memory_bytes() const { return memory_bytes_; }
  const std::string& uuid() const { return uuid_; }  // 32 hexadecimal digits; no other GPU has it

  // Compute capability 9.0: the kernels for sm_90a run on it.
  bool has_wgmma() const { return has_wgmma_; }
  // Whether it multiplies 8-bit numbers; otherwise a sentence for people.
  Status CheckFp8() const;

  // Makes it the calling thread's device; the opening thread has it.
  Status Use() const;

  // On the device's stream, with this scratch.
  Context MakeContext(std::byte* workspace, int64_t workspace_bytes) const {
    return MakeContext(stream_, workspace, workspace_bytes);
  }
  Context MakeContext(CUstream_st* stream, std::byte* workspace, int64_t workspace_bytes) const;
  // Waits for the stream; then the first error that it met, a bad index among them, which is
  // forgotten.
  Status Finish();

 private:
  Device() = default;
  Status Start(int ordinal);

  int ordinal_ = 0;
  std::string name_, uuid_;
  int64_t memory_bytes_ = 0;
  int multiprocessors_ = 1;
  int capability_ = 0;  // 89 is 8.9
  bool has_wgmma_ = false, wgmma_attention_ = false;
  CUstream_st* stream_ = nullptr;
  Fault* faults_ = nullptr;
  std::unique_ptr<GemmLibrary> gemms_;
};

// "embedding: the index at position 17 is outside its table"; fine for kNoFault.
Status DescribeFault(Fault fault);

}  // namespace terrace::kernels::cuda
