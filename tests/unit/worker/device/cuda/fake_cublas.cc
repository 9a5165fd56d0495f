// Stands for cuBLASLt on the fake device: plain loops, queued like any other work.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cublas_gemm.h"
#include "tests/unit/kernels/cuda/plain_gemms.h"
#include "tests/unit/kernels/cuda/simt/fake_device.h"

namespace terrace::kernels::cuda {
namespace {

class QueuedGemms final : public GemmLibrary {
 public:
  bool Supports(const Product& product) const override { return gemms_.Supports(product); }

  Status Multiply(const Product& product, std::byte* scratch, CUstream_st* stream) const override {
    const cudaError_t error = simt::Enqueue(stream, [this, product, scratch] {
      gemms_.Multiply(product, scratch, nullptr);  // what Supports has seen does not fail
    });
    if (error != cudaSuccess) return {cudaGetErrorString(error)};
    return {};
  }

 private:
  const PlainGemms gemms_{/*fuses=*/true};
};

}  // namespace

Status MakeCublasGemms(std::unique_ptr<GemmLibrary>* library) {
  *library = std::make_unique<QueuedGemms>();
  return {};
}

}  // namespace terrace::kernels::cuda
