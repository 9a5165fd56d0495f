// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/bench_cublas.h"

#include <cublasLt.h>

#include <array>
#include <limits>
#include <string>
#include <utility>

#include "kernels/cuda/workspace.h"

namespace terrace::kernels::bench {
namespace {

constexpr int kAlgorithms = 16;  // asked for; cuBLASLt offers them best guess first
constexpr int kTrialCalls = 8;   // of each, to choose

cudaDataType_t TypeOf(const TensorView& view) {
  if (view.dtype == DType::kF16) return CUDA_R_16F;
  return view.dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F;
}

// cuBLASLt's matrices are column-major: what is computed is the transpose, operands changed over.
class LibraryProduct final : public BestProduct {
 public:
  LibraryProduct(const MatmulAttrs& attrs, std::span<const TensorView> views, std::byte* scratch,
                 cudaStream_t stream)
      : a_(views[0]), b_(views[1]), c_(views[2]), scratch_(scratch), stream_(stream) {
    cudaEventCreate(&begin_);
    cudaEventCreate(&end_);
    const cublasOperation_t first = attrs.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = attrs.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    Note(cublasLtCreate(&handle_));
    Note(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    Note(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSA, &first,
                                        sizeof(first)));
    Note(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSB, &second,
                                        sizeof(second)));
    Layout(&first_, b_);
    Layout(&second_, a_);
    Layout(&out_, c_);
    const uint64_t bytes = cuda::kGemmLibraryBytes;
    Note(cublasLtMatmulPreferenceCreate(&preference_));
    Note(cublasLtMatmulPreferenceSetAttribute(preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                              &bytes, sizeof(bytes)));
  }
  ~LibraryProduct() override {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    if (preference_ != nullptr) cublasLtMatmulPreferenceDestroy(preference_);
    for (cublasLtMatrixLayout_t layout : {first_, second_, out_}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
    if (operation_ != nullptr) cublasLtMatmulDescDestroy(operation_);
    if (handle_ != nullptr) cublasLtDestroy(handle_);
  }
  LibraryProduct(const LibraryProduct&) = delete;
  LibraryProduct& operator=(const LibraryProduct&) = delete;

  // Times each algorithm for a few calls, the first of them not.
  Status Choose() {
    int found = 0;
    Note(cublasLtMatmulAlgoGetHeuristic(handle_, operation_, first_, second_, out_, out_,
                                        preference_, kAlgorithms, algorithms_.data(), &found));
    if (status_ != CUBLAS_STATUS_SUCCESS) {
      return {std::string("cublasLt: ") + cublasLtGetStatusString(status_)};
    }
    double fastest = std::numeric_limits<double>::infinity();
    for (int algorithm = 0; algorithm < found; ++algorithm) {
      double seconds = 0;
      if (!Run(algorithm)) continue;
      if (!TimeOne(algorithm, kTrialCalls, &seconds).ok() || seconds >= fastest) continue;
      fastest = seconds;
      best_ = algorithm;
    }
    if (best_ >= 0) return {};
    return {"cublasLt: none of " + std::to_string(found) +
            " algorithms for this product ran: " + cudaGetErrorString(cudaGetLastError())};
  }

  Status Time(int calls, double* seconds) override { return TimeOne(best_, calls, seconds); }

 private:
  bool Run(int algorithm) const {
    const float alpha = 1, beta = 0;
    return cublasLtMatmul(handle_, operation_, &alpha, b_.data, first_, a_.data, second_, &beta,
                          c_.data, out_, c_.data, out_, &algorithms_[algorithm].algo, scratch_,
                          static_cast<size_t>(cuda::kGemmLibraryBytes),
                          stream_) == CUBLAS_STATUS_SUCCESS;
  }
  Status TimeOne(int algorithm, int calls, double* seconds) const {
    bool ran = cudaEventRecord(begin_, stream_) == cudaSuccess;
    for (int i = 0; i < calls && ran; ++i) ran = Run(algorithm);
    float milliseconds = 0;
    ran = ran && cudaEventRecord(end_, stream_) == cudaSuccess &&
          cudaEventSynchronize(end_) == cudaSuccess &&
          cudaEventElapsedTime(&milliseconds, begin_, end_) == cudaSuccess;
    *seconds = milliseconds / 1e3 / calls;
    if (ran) return {};
    return {std::string("cublasLt: the product failed: ") + cudaGetErrorString(cudaGetLastError())};
  }
  void Note(cublasStatus_t status) {
    if (status_ == CUBLAS_STATUS_SUCCESS) status_ = status;
  }
  void Layout(cublasLtMatrixLayout_t* layout, const TensorView& view) {
    Note(cublasLtMatrixLayoutCreate(layout, TypeOf(view), static_cast<uint64_t>(view.size[1]),
                                    static_cast<uint64_t>(view.size[0]), view.row_stride));
  }

  const TensorView a_, b_, c_;
  std::byte* const scratch_;
  const cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  int best_ = -1;
  cublasStatus_t status_ = CUBLAS_STATUS_SUCCESS;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t first_ = nullptr, second_ = nullptr, out_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  std::array<cublasLtMatmulHeuristicResult_t, kAlgorithms> algorithms_ = {};
};

}  // namespace

Status FindBestProduct(const MatmulAttrs& attrs, std::span<const TensorView> views,
                       std::byte* scratch, cudaStream_t stream,
                       std::unique_ptr<BestProduct>* best) {
  auto product = std::make_unique<LibraryProduct>(attrs, views, scratch, stream);
  const Status status = product->Choose();
  if (status.ok()) *best = std::move(product);
  return status;
}

}  // namespace terrace::kernels::bench
