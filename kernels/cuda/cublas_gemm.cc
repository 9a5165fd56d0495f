// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cublas_gemm.h"

#include <cublasLt.h>

#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>

namespace terrace::kernels::cuda {
namespace {

Status Check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return {std::string("cublasLt: ") + what + ": " + cublasLtGetStatusString(status)};
}

cudaDataType_t TypeOf(DType dtype) {
  if (dtype == DType::kF16) return CUDA_R_16F;
  return dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F;
}

cudaDataType_t TypeOf(const Matrix& operand, const Fp8Codes& codes) {
  if (codes.factor == nullptr) return TypeOf(operand.dtype);
  return codes.format == Fp8Format::kE4M3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}

// The widest access of a kernel. Operands that are aligned better are all of one kind: a product of
// a step then has the algorithm, and so the kernel, that it had at the warm-up, wherever its
// operands lie.
constexpr uint32_t kWidestAlignment = 16;

// The largest power of two up to the widest that divides the address.
uint32_t AlignmentOf(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  uint32_t alignment = kWidestAlignment;
  while (address % alignment != 0) alignment /= 2;
  return alignment;
}

// What cuBLASLt's choice of an algorithm depends on.
using Key = std::array<int64_t, 20>;

Key KeyOf(const Product& p) {
  const bool adds = p.added.data != nullptr;
  return {p.m,
          p.n,
          p.k,
          p.transpose_a,
          p.transpose_b,
          p.tf32,
          TypeOf(p.a, p.a_codes),
          TypeOf(p.b, p.b_codes),
          static_cast<int64_t>(p.c.dtype),
          p.a.row_stride,
          p.b.row_stride,
          p.c.row_stride,
          adds ? p.added.row_stride : 0,
          adds && p.added.data != p.c.data,
          AlignmentOf(p.a.data),
          AlignmentOf(p.b.data),
          AlignmentOf(p.c.data),
          adds ? AlignmentOf(p.added.data) : 0,
          p.bias != nullptr,
          AlignmentOf(p.bias)};
}

// The heuristic's answer for products of one kind.
struct Answer {
  std::optional<cublasLtMatmulAlgo_t> algorithm;
  cublasStatus_t refusal = CUBLAS_STATUS_SUCCESS;  // why there is no algorithm
};

// Whether cuBLASLt can never execute such a product. Other errors may be gone the next time (no
// memory, no library).
bool Refuses(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
         status == CUBLAS_STATUS_ARCH_MISMATCH;
}

// cuBLASLt's objects for one product. Its matrices are column-major: a row-major matrix is the
// transpose of a column-major one, so C^T = op(B)^T op(A)^T is computed, with A and B changed over.
class Call {
 public:
  Call() = default;
  ~Call() {
    for (cublasLtMatrixLayout_t layout : {first_, second_, added_, out_}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
    if (operation_ != nullptr) cublasLtMatmulDescDestroy(operation_);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  Status Prepare(const Product& p) {
    const cublasComputeType_t compute = p.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    Status status = Check(cublasLtMatmulDescCreate(&operation_, compute, CUDA_R_32F),
                          "cublasLtMatmulDescCreate");
    if (!status.ok()) return status;
    // The first operand is op(B)^T: stored row-major it is already transposed once.
    SetOperation(CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    SetOperation(CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (p.bias != nullptr) SetBias(p.bias);
    if (p.fp8()) {
      SetFactor(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.b_codes.factor);
      SetFactor(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.a_codes.factor);
    }
    MakeLayout(&first_, TypeOf(p.b, p.b_codes), p.b, p.transpose_b ? p.k : p.n,
               p.transpose_b ? p.n : p.k);
    MakeLayout(&second_, TypeOf(p.a, p.a_codes), p.a, p.transpose_a ? p.m : p.k,
               p.transpose_a ? p.k : p.m);
    const Matrix& added = AddedOf(p);
    MakeLayout(&added_, TypeOf(added.dtype), added, p.n, p.m);
    MakeLayout(&out_, TypeOf(p.c.dtype), p.c, p.n, p.m);
    return status_;
  }

  // REQUIRES: prepared.
  Status Search(cublasLtHandle_t handle, const Product& p, Answer* answer) {
    cublasLtMatmulPreference_t preference = nullptr;
    Note(cublasLtMatmulPreferenceCreate(&preference));
    if (!status_.ok()) return status_;
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t which, auto value) {
      Note(cublasLtMatmulPreferenceSetAttribute(preference, which, &value, sizeof(value)));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kGemmLibraryBytes));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOf(p.b.data));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, AlignmentOf(p.a.data));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, AlignmentOf(AddedOf(p).data));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, AlignmentOf(p.c.data));
    // Parts of a sum are added in the type that products are accumulated in, so that a result of 16
    // bits is rounded once.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    cublasLtMatmulHeuristicResult_t best = {};
    int found = 0;
    cublasStatus_t asked = CUBLAS_STATUS_SUCCESS;
    if (status_.ok()) {
      asked = cublasLtMatmulAlgoGetHeuristic(handle, operation_, first_, second_, added_, out_,
                                             preference, 1, &best, &found);
      if (!Refuses(asked)) status_ = Check(asked, "cannot choose an algorithm for a product");
    }
    cublasLtMatmulPreferenceDestroy(preference);
    if (!status_.ok()) return status_;
    if (asked == CUBLAS_STATUS_SUCCESS) {
      asked = found > 0 ? best.state : CUBLAS_STATUS_NOT_SUPPORTED;
    }
    *answer = {};
    if (asked == CUBLAS_STATUS_SUCCESS) {
      answer->algorithm = best.algo;
    } else {
      answer->refusal = asked;
    }
    return {};
  }

  Status Run(cublasLtHandle_t handle, const Product& p, const cublasLtMatmulAlgo_t& algorithm,
             std::byte* scratch, CUstream_st* stream) const {
    const float alpha = 1, beta = p.added.data == nullptr ? 0 : 1;
    return Check(cublasLtMatmul(handle, operation_, &alpha, p.b.data, first_, p.a.data, second_,
                                &beta, AddedOf(p).data, added_, p.c.data, out_, &algorithm, scratch,
                                static_cast<size_t>(kGemmLibraryBytes), stream),
                 "cublasLtMatmul");
  }

 private:
  static const Matrix& AddedOf(const Product& p) { return p.added.data == nullptr ? p.c : p.added; }
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
  // FAST_ACCUM, which keeps fewer bits of the sums than f32 has, stays off as it is by default.
  void SetFactor(cublasLtMatmulDescAttributes_t which, const float* factor) {
    Note(cublasLtMatmulDescSetAttribute(operation_, which, &factor, sizeof(factor)));
  }
  // Column-major `rows` x `columns`: the matrix as it lies in memory.
  void MakeLayout(cublasLtMatrixLayout_t* layout, cudaDataType_t type, const Matrix& matrix,
                  int64_t rows, int64_t columns) {
    Note(cublasLtMatrixLayoutCreate(layout, type, static_cast<uint64_t>(rows),
                                    static_cast<uint64_t>(columns), matrix.row_stride));
  }

  Status status_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t first_ = nullptr, second_ = nullptr, added_ = nullptr, out_ = nullptr;
};

class CublasGemms final : public GemmLibrary {
 public:
  explicit CublasGemms(cublasLtHandle_t handle) : handle_(handle) {}
  ~CublasGemms() override { cublasLtDestroy(handle_); }

  bool Supports(const Product& product) const override {
    Call call;
    Answer answer;
    return call.Prepare(product).ok() && Find(product, &call, &answer).ok() &&
           answer.algorithm.has_value();
  }

  Status Multiply(const Product& product, std::byte* scratch, CUstream_st* stream) const override {
    Call call;
    Status status = call.Prepare(product);
    if (!status.ok()) return status;
    Answer answer;
    status = Find(product, &call, &answer);
    if (!status.ok()) return status;
    if (!answer.algorithm.has_value()) {
      return Check(answer.refusal,
                   ("no algorithm for a product of " + std::to_string(product.m) + " x " +
                    std::to_string(product.n) + " x " + std::to_string(product.k))
                       .c_str());
    }
    return call.Run(handle_, product, *answer.algorithm, scratch, stream);
  }

 private:
  // Asks cuBLASLt once for products of one kind: a step has the same ones again and again. What
  // could not be asked (no memory, say) is not kept: it says why, and is asked again. Nobody waits
  // for another's question; of two who ask the same at once both take the first answer.
  Status Find(const Product& product, Call* call, Answer* answer) const {
    const Key key = KeyOf(product);
    {
      const std::shared_lock lock(mutex_);
      const auto known = answers_.find(key);
      if (known != answers_.end()) {
        *answer = known->second;
        return {};
      }
    }
    Status status = call->Search(handle_, product, answer);
    if (!status.ok()) return status;
    const std::unique_lock lock(mutex_);
    *answer = answers_.emplace(key, *answer).first->second;
    return {};
  }

  const cublasLtHandle_t handle_;
  mutable std::shared_mutex mutex_;
  mutable std::map<Key, Answer> answers_;
};

}  // namespace

Status MakeCublasGemms(std::unique_ptr<GemmLibrary>* library) {
  cublasLtHandle_t handle = nullptr;
  Status status = Check(cublasLtCreate(&handle), "cublasLtCreate");
  if (status.ok()) *library = std::make_unique<CublasGemms>(handle);
  return status;
}

}  // namespace terrace::kernels::cuda
