// SPDX-License-Identifier: Apache-2.0
#include "worker/comm/cuda_staging.h"

#include <cuda_runtime_api.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

absl::Status Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("staging: ", what, ": ", cudaGetErrorString(error)));
}

class CudaStagingBuffer final : public StagingBuffer {
 public:
  // `shared`: null for a stream of its own.
  static absl::StatusOr<std::unique_ptr<StagingBuffer>> Make(cudaStream_t shared, int64_t bytes) {
    std::unique_ptr<CudaStagingBuffer> buffer(new CudaStagingBuffer());
    buffer->stream_ = shared;
    RETURN_IF_ERROR(Check(cudaGetDevice(&buffer->device_), "the current device"));
    void* data = nullptr;
    const cudaError_t error =
        cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocDefault);
    buffer->data_ = static_cast<std::byte*>(data);
    if (error != cudaSuccess) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "staging: cannot pin ", bytes, " bytes of host memory: ", cudaGetErrorString(error),
          "; free some, or let fewer ranks share the GPU"));
    }
    if (shared == nullptr) {
      RETURN_IF_ERROR(
          Check(cudaStreamCreateWithFlags(&buffer->own_, cudaStreamNonBlocking), "a stream"));
      buffer->stream_ = buffer->own_;
    }
    return buffer;
  }

  ~CudaStagingBuffer() override {
    if (own_ != nullptr) cudaStreamDestroy(own_);
    if (data_ != nullptr) cudaFreeHost(data_);
  }

  std::byte* data() override { return data_; }

  absl::Status ToHost(std::byte* host, const void* device, int64_t bytes) override {
    return Copy(host, device, bytes, cudaMemcpyDeviceToHost, "copying to the host");
  }
  absl::Status ToDevice(void* device, const std::byte* host, int64_t bytes) override {
    return Copy(device, host, bytes, cudaMemcpyHostToDevice, "copying to the device");
  }
  absl::Status Wait() override {
    return Check(cudaStreamSynchronize(stream_), "waiting for copies");
  }

 private:
  CudaStagingBuffer() = default;
  // The calling thread's device may be another: each stream of a program has a thread.
  absl::Status Copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind,
                    const char* what) {
    RETURN_IF_ERROR(Check(cudaSetDevice(device_), what));
    return Check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream_), what);
  }

  int device_ = 0;
  std::byte* data_ = nullptr;
  cudaStream_t own_ = nullptr;
  cudaStream_t stream_ = nullptr;  // own_ or the group's
};

}  // namespace

MakeStagingBuffer CudaStaging(CUstream_st* stream) {
  return [stream](StagingUse use, int64_t bytes) {
    return CudaStagingBuffer::Make(use.kind == StagingUse::kCollectives ? stream : nullptr, bytes);
  };
}

}  // namespace terrace
