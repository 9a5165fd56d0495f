// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <mutex>

#include "kernels/cuda/attention_choice.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cublas_gemm.h"
#include "kernels/cuda/kernels.h"

namespace terrace::kernels::cuda {
namespace {

constexpr char kHexDigits[] = "0123456789abcdef";
constexpr int kOldestMajor = 8;  // what the kernels are compiled for: sm_80 and later

// "12.4" from 12040.
std::string VersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// The streams of a rank that can run beside each other, the driver's largest number. It makes 8 by
// default: of more, some share one and wait for each other for no reason.
constexpr char kConnections[] = "32";

// The driver reads its environment once, at its first call. What is set already stays.
void PrepareEnvironment() {
  static std::once_flag once;
  std::call_once(once, [] { ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", kConnections, 0); });
}

// A runtime works with drivers of its own major version and later ones.
Status CheckDriver() {
  PrepareEnvironment();
  int driver = 0, runtime = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return {"cuda: no NVIDIA driver on this machine: install it, or run on the CPU"};
  }
  Status status = Check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  if (!status.ok() || driver / 1000 >= runtime / 1000) return status;
  return {"cuda: no NVIDIA driver that is new enough on this machine: it is for CUDA " +
          VersionText(driver) + ", and these programs need one for CUDA " +
          std::to_string(runtime / 1000) +
          ".0 or later (580 is the first for 13.0): update it, or install NVIDIA's cuda-compat"};
}

Status CountDevices(int* devices) {
  Status status = CheckDriver();
  if (!status.ok()) return status;
  const cudaError_t error = cudaGetDeviceCount(devices);
  if (error == cudaSuccess && *devices > 0) return {};
  return {std::string("cuda: no NVIDIA device can be used here (") +
          (error == cudaSuccess ? "the driver lists none" : cudaGetErrorString(error)) + ")"};
}

Status FindDevice(int ordinal) {
  int devices = 0;
  Status status = CountDevices(&devices);
  if (!status.ok() || ordinal < devices) return status;
  return {"cuda: device " + std::to_string(ordinal) + " of " + std::to_string(devices) +
          " does not exist"};
}

std::string UuidOf(const cudaDeviceProp& properties) {
  std::string digits;
  for (const char byte : properties.uuid.bytes) {
    digits += kHexDigits[static_cast<unsigned char>(byte) / 16];
    digits += kHexDigits[static_cast<unsigned char>(byte) % 16];
  }
  return digits;
}

Status CheckCode(const std::string& device) {
  const Status status = CheckLoads();
  if (status.ok()) return status;
  return {status.message + ": these programs have no code for " + device +
          ", or its driver is too old to compile theirs: update the driver, or build with the "
          "device's architecture in TERRACE_CUDA_ARCHITECTURES"};
}

}  // namespace

Status ListDevices(std::vector<DeviceInfo>* devices) {
  int count = 0;
  Status status = CountDevices(&count);
  for (int i = 0; i < count && status.ok(); ++i) {
    cudaDeviceProp properties = {};
    status = Check(cudaGetDeviceProperties(&properties, i), "properties");
    devices->push_back({.name = properties.name,
                        .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
                        .major = properties.major,
                        .minor = properties.minor,
                        .uuid = UuidOf(properties)});
  }
  return status;
}

std::string DriverVersion() {
  PrepareEnvironment();
  int driver = 0;
  const bool found = cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0;
  return found ? VersionText(driver) : "";
}

Status Device::Open(int ordinal, std::unique_ptr<Device>* device) {
  Status status = FindDevice(ordinal);
  if (!status.ok()) return status;
  std::unique_ptr<Device> opened(new Device());
  status = opened->Start(ordinal);
  if (status.ok()) *device = std::move(opened);
  return status;
}

Status Device::Use() const { return Check(cudaSetDevice(ordinal_), "cudaSetDevice"); }

Status Device::Start(int ordinal) {
  ordinal_ = ordinal;
  cudaDeviceProp properties = {};
  Status status = Check(cudaGetDeviceProperties(&properties, ordinal), "properties");
  if (!status.ok()) return status;
  name_ = std::string(properties.name) + ", sm_" + std::to_string(properties.major) +
          std::to_string(properties.minor) + ", " + std::to_string(properties.multiProcessorCount) +
          " SMs";
  memory_bytes_ = static_cast<int64_t>(properties.totalGlobalMem);
  multiprocessors_ = properties.multiProcessorCount;
  capability_ = 10 * properties.major + properties.minor;
  has_wgmma_ = capability_ == 90;
  wgmma_attention_ = has_wgmma_ && WantsWgmma(std::getenv("TERRACE_CUDA_ATTENTION"));
  uuid_ = UuidOf(properties);
  if (properties.major < kOldestMajor) {
    return {"cuda: " + name_ + " is too old: the kernels need sm_80 or later"};
  }
  status = Use();
  if (status.ok()) status = CheckCode(name_);
  if (status.ok()) {
    status = Check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
  }
  if (status.ok()) {
    status = Check(cudaMalloc(reinterpret_cast<void**>(&faults_), sizeof(Fault)), "cudaMalloc");
  }
  if (status.ok()) {
    status = Check(cudaMemset(faults_, 0xff, sizeof(Fault)), "cudaMemset");  // kNoFault
  }
  if (status.ok()) status = Check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return status.ok() ? MakeCublasGemms(&gemms_) : status;
}

Status Device::CheckFp8() const {
  constexpr int kAda = 89;
  if (capability_ >= kAda) return {};
  return {"cuda: " + name_ +
          " has no units for 8-bit products, which compute capability 8.9 brought: set "
          "train.precision to bf16"};
}

Device::~Device() {
  gemms_.reset();
  if (faults_ != nullptr) cudaFree(faults_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

Context Device::MakeContext(CUstream_st* stream, std::byte* workspace,
                            int64_t workspace_bytes) const {
  return {.stream = stream,
          .gemms = gemms_.get(),
          .faults = faults_,
          .workspace = workspace,
          .workspace_bytes = workspace_bytes,
          .multiprocessors = multiprocessors_,
          .wgmma_attention = wgmma_attention_};
}

Status Device::Finish() {
  Status status = Check(cudaStreamSynchronize(stream_), "the stream");
  if (!status.ok()) return status;
  Fault fault = kNoFault;
  status = Check(cudaMemcpy(&fault, faults_, sizeof(fault), cudaMemcpyDeviceToHost), "cudaMemcpy");
  if (!status.ok() || fault == kNoFault) return status;
  status = Check(cudaMemset(faults_, 0xff, sizeof(Fault)), "cudaMemset");
  if (status.ok()) status = Check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return status.ok() ? DescribeFault(fault) : status;
}

}  // namespace terrace::kernels::cuda
