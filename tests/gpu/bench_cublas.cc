// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/bench_cublas.h"

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "kernels/cuda/workspace.h"

namespace terrace::kernels::bench {
namespace {

constexpr int kAlgorithms = 16;  // asked for; cuBLASLt offers them best guess first

cudaDataType_t TypeOf(const TensorView& view) {
  return view.dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F;
}

// cuBLASLt's matrices are column-major: what is computed is the transpose, operands changed over.
class Product {
 public:
  Product(const MatmulAttrs& attrs, std::span<const TensorView> views)
      : a_(views[0]), b_(views[1]), c_(views[2]) {
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
  ~Product() {
    if (preference_ != nullptr) cublasLtMatmulPreferenceDestroy(preference_);
    for (cublasLtMatrixLayout_t layout : {first_, second_, out_}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
    if (operation_ != nullptr) cublasLtMatmulDescDestroy(operation_);
    if (handle_ != nullptr) cublasLtDestroy(handle_);
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  bool ok() const { return status_ == CUBLAS_STATUS_SUCCESS; }
  int Algorithms() {
    int found = 0;
    Note(cublasLtMatmulAlgoGetHeuristic(handle_, operation_, first_, second_, out_, out_,
                                        preference_, kAlgorithms, algorithms_.data(), &found));
    return ok() ? found : 0;
  }
  bool Run(int algorithm, std::byte* scratch, cudaStream_t stream) const {
    const float alpha = 1, beta = 0;
    return cublasLtMatmul(handle_, operation_, &alpha, b_.data, first_, a_.data, second_, &beta,
                          c_.data, out_, c_.data, out_, &algorithms_[algorithm].algo, scratch,
                          static_cast<size_t>(cuda::kGemmLibraryBytes),
                          stream) == CUBLAS_STATUS_SUCCESS;
  }

 private:
  void Note(cublasStatus_t status) {
    if (ok()) status_ = status;
  }
  void Layout(cublasLtMatrixLayout_t* layout, const TensorView& view) {
    Note(cublasLtMatrixLayoutCreate(layout, TypeOf(view), static_cast<uint64_t>(view.size[1]),
                                    static_cast<uint64_t>(view.size[0]), view.row_stride));
  }

  const TensorView a_, b_, c_;
  cublasStatus_t status_ = CUBLAS_STATUS_SUCCESS;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t first_ = nullptr, second_ = nullptr, out_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  std::array<cublasLtMatmulHeuristicResult_t, kAlgorithms> algorithms_ = {};
};

}  // namespace

Status TimeBestProduct(const MatmulAttrs& attrs, std::span<const TensorView> views,
                       std::byte* scratch, cudaStream_t stream, int calls, double* seconds) {
  Product product(attrs, views);
  const int algorithms = product.Algorithms();
  if (algorithms == 0) return {"cublasLt: no algorithm for this product"};
  cudaEvent_t begin = nullptr, end = nullptr;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  double best = std::numeric_limits<double>::infinity();
  for (int algorithm = 0; algorithm < algorithms; ++algorithm) {
    if (!product.Run(algorithm, scratch, stream)) continue;  // the first call is not timed
    cudaEventRecord(begin, stream);
    for (int i = 0; i < calls; ++i) product.Run(algorithm, scratch, stream);
    cudaEventRecord(end, stream);
    float milliseconds = 0;
    if (cudaEventSynchronize(end) != cudaSuccess) break;
    cudaEventElapsedTime(&milliseconds, begin, end);
    best = std::min(best, milliseconds / 1e3 / calls);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  *seconds = best;
  if (best < std::numeric_limits<double>::infinity()) return {};
  return {std::string("cublasLt: none of ") + std::to_string(algorithms) +
          " algorithms ran: " + cudaGetErrorString(cudaGetLastError())};
}

}  // namespace terrace::kernels::bench
