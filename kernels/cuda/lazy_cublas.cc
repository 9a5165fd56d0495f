// cuBLASLt's functions as the kernels call them, found in the library at the first call: a process
// that links cuBLASLt pays 150 MB of memory and an eighth of a second for it, and ranks on CPUs are
// the same program as ranks on GPUs.
//
// A machine without the library gets CUBLAS_STATUS_NOT_INITIALIZED, and the text that says why.
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#include <cublasLt.h>
#include <dlfcn.h>

#define TERRACE_TEXT_OF(x) #x
#define TERRACE_TEXT(x) TERRACE_TEXT_OF(x)

namespace {

constexpr char kLibrary[] = "libcublasLt.so." TERRACE_TEXT(CUBLAS_VER_MAJOR);
constexpr char kMissing[] = "libcublasLt.so." TERRACE_TEXT(
    CUBLAS_VER_MAJOR) " cannot be loaded: install NVIDIA's cuBLAS, or use a bundle";

// The library's function of this name; null where there is none.
template <typename Function>
Function Find(Function, const char* name) {
  static void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

#define TERRACE_FORWARD(name, ...)                 \
  static const auto function = Find(&name, #name); \
  return function == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED : function(__VA_ARGS__)

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { TERRACE_FORWARD(cublasLtCreate, handle); }

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  TERRACE_FORWARD(cublasLtDestroy, handle);
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  static const auto function = Find(&cublasLtGetStatusString, "cublasLtGetStatusString");
  return function == nullptr ? kMissing : function(status);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  TERRACE_FORWARD(cublasLtMatmul, handle, operation, alpha, a, a_layout, b, b_layout, beta, c,
                  c_layout, d, d_layout, algorithm, workspace, workspace_bytes, stream);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  TERRACE_FORWARD(cublasLtMatmulAlgoGetHeuristic, handle, operation, a, b, c, d, preference, wanted,
                  results, found);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description,
                                        cublasComputeType_t compute, cudaDataType_t scale) {
  TERRACE_FORWARD(cublasLtMatmulDescCreate, description, compute, scale);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  TERRACE_FORWARD(cublasLtMatmulDescDestroy, description);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t which,
                                              const void* value, size_t bytes) {
  TERRACE_FORWARD(cublasLtMatmulDescSetAttribute, description, which, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t stride) {
  TERRACE_FORWARD(cublasLtMatrixLayoutCreate, layout, type, rows, columns, stride);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  TERRACE_FORWARD(cublasLtMatrixLayoutDestroy, layout);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  TERRACE_FORWARD(cublasLtMatmulPreferenceCreate, preference);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  TERRACE_FORWARD(cublasLtMatmulPreferenceDestroy, preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t which,
                                                    const void* value, size_t bytes) {
  TERRACE_FORWARD(cublasLtMatmulPreferenceSetAttribute, preference, which, value, bytes);
}

}  // extern "C"
