// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cublas_gemm.h"

#include <cublasLt.h>

#include <string>

namespace terrace::kernels::cuda {
namespace {

Status Check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return {std::string("cublasLt: ") + what + ": " + cublasLtGetStatusString(status)};
}

cudaDataType_t TypeOf(DType dtype) { return dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F; }

// The largest power of two up to 256 that divides the address.
uint32_t AlignmentOf(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  uint32_t alignment = 256;
  while (address % alignment != 0) alignment /= 2;
  return alignment;
}

// cuBLASLt's objects for one product. Its matrices are column-major: a row-major matrix is the
// transpose of a column-major one, so C^T = op(B)^T op(A)^T is computed, with A and B changed over.
class Call {
 public:
  Call() = default;
  ~Call() {
    if (preference_ != nullptr) cublasLtMatmulPreferenceDestroy(preference_);
    for (cublasLtMatrixLayout_t layout : {first_, second_, added_, out_}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
    if (operation_ != nullptr) cublasLtMatmulDescDestroy(operation_);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  Status Prepare(const Product& p) {
    Status status = Check(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                          "cublasLtMatmulDescCreate");
    if (!status.ok()) return status;
    // The first operand is op(B)^T: stored row-major it is already transposed once.
    SetOperation(CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    SetOperation(CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (p.bias != nullptr) SetBias(p.bias);
    const Matrix& added = p.added.data == nullptr ? p.c : p.added;
    MakeLayout(&first_, p.b, p.transpose_b ? p.k : p.n, p.transpose_b ? p.n : p.k);
    MakeLayout(&second_, p.a, p.transpose_a ? p.m : p.k, p.transpose_a ? p.k : p.m);
    MakeLayout(&added_, added, p.n, p.m);
    MakeLayout(&out_, p.c, p.n, p.m);
    Note(cublasLtMatmulPreferenceCreate(&preference_));
    if (!status_.ok()) return status_;
    Prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kGemmLibraryBytes));
    Prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOf(p.b.data));
    Prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, AlignmentOf(p.a.data));
    Prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, AlignmentOf(added.data));
    Prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, AlignmentOf(p.c.data));
    return status_;
  }

  // False when cuBLASLt has no algorithm for it.
  bool Find(cublasLtHandle_t handle) {
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle, operation_, first_, second_, added_, out_, preference_, 1, &algorithm_, &found);
    return status == CUBLAS_STATUS_SUCCESS && found > 0;
  }

  Status Run(cublasLtHandle_t handle, const Product& p, std::byte* scratch,
             CUstream_st* stream) const {
    const float alpha = 1, beta = p.added.data == nullptr ? 0 : 1;
    const void* added = p.added.data == nullptr ? p.c.data : p.added.data;
    return Check(cublasLtMatmul(handle, operation_, &alpha, p.b.data, first_, p.a.data, second_,
                                &beta, added, added_, p.c.data, out_, &algorithm_.algo, scratch,
                                static_cast<size_t>(kGemmLibraryBytes), stream),
                 "cublasLtMatmul");
  }

 private:
  void Note(cublasStatus_t status) {
    if (status_.ok()) status_ = Check(status, "cannot describe a product");
  }
  void SetOperation(cublasLtMatmulDescAttributes_t which, cublasOperation_t operation) {
    Note(cublasLtMatmulDescSetAttribute(operation_, which, &operation, sizeof(operation)));
  }
  // The bias is f32 whatever c is; cuBLASLt says where it cannot do that.
  void SetBias(const float* bias) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const cudaDataType_t type = CUDA_R_32F;
    Note(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                        sizeof(epilogue)));
    Note(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type,
                                        sizeof(type)));
    Note(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                        sizeof(bias)));
  }
  // Column-major `rows` x `columns`: the matrix as it lies in memory.
  void MakeLayout(cublasLtMatrixLayout_t* layout, const Matrix& matrix, int64_t rows,
                  int64_t columns) {
    Note(cublasLtMatrixLayoutCreate(layout, TypeOf(matrix.dtype), static_cast<uint64_t>(rows),
                                    static_cast<uint64_t>(columns), matrix.row_stride));
  }
  template <typename T>
  void Prefer(cublasLtMatmulPreferenceAttributes_t which, T value) {
    Note(cublasLtMatmulPreferenceSetAttribute(preference_, which, &value, sizeof(value)));
  }

  Status status_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t first_ = nullptr, second_ = nullptr, added_ = nullptr, out_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  cublasLtMatmulHeuristicResult_t algorithm_ = {};
};

class CublasGemms final : public GemmLibrary {
 public:
  explicit CublasGemms(cublasLtHandle_t handle) : handle_(handle) {}
  ~CublasGemms() override { cublasLtDestroy(handle_); }

  bool Supports(const Product& product) const override {
    Call call;
    return call.Prepare(product).ok() && call.Find(handle_);
  }

  Status Multiply(const Product& product, std::byte* scratch, CUstream_st* stream) const override {
    Call call;
    Status status = call.Prepare(product);
    if (!status.ok()) return status;
    if (!call.Find(handle_)) {
      return {"cublasLt: no algorithm for a product of " + std::to_string(product.m) + " x " +
              std::to_string(product.n) + " x " + std::to_string(product.k)};
    }
    return call.Run(handle_, product, scratch, stream);
  }

 private:
  const cublasLtHandle_t handle_;
};

}  // namespace

Status MakeCublasGemms(std::unique_ptr<GemmLibrary>* library) {
  cublasLtHandle_t handle = nullptr;
  Status status = Check(cublasLtCreate(&handle), "cublasLtCreate");
  if (status.ok()) *library = std::make_unique<CublasGemms>(handle);
  return status;
}

}  // namespace terrace::kernels::cuda
