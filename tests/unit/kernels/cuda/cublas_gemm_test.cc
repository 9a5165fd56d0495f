// What is asked of cuBLASLt, how often, and what is kept of its answers. The test plays cuBLASLt:
// of its functions cublas_gemm.cc sees these, so neither the library nor a GPU is needed.
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cublas_gemm.h"

#include <cublasLt.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace terrace::kernels::cuda {
namespace {

using testing::HasSubstr;

// What cuBLASLt is to answer, and what it was asked.
struct Played {
  cublasStatus_t says = CUBLAS_STATUS_SUCCESS;
  cublasStatus_t state = CUBLAS_STATUS_SUCCESS;  // of the algorithm that it has
  int has = 1;                                   // algorithms

  std::mutex mutex;
  std::condition_variable changed;
  int waits_for = 0;  // questions that must be under way together before one is answered
  int questions = 0, products = 0;
  std::map<int, uint32_t> alignments;  // of the last question, by attribute
  uint32_t reductions = 0;             // schemes that it allows
};
Played* played = nullptr;

class CublasGemmTest : public testing::Test {
 protected:
  void SetUp() override {
    played = &played_;
    ASSERT_TRUE(MakeCublasGemms(&gemms_).ok());
  }
  void TearDown() override {
    gemms_.reset();
    played = nullptr;
  }

  // A bf16 product whose operands start `offset` bytes after whole 4096.
  Product AProduct(int64_t m = 64, int64_t offset = 0) {
    std::byte* const data = memory_ + offset;
    const auto matrix = [&](int64_t stride) { return Matrix{data, DType::kBF16, stride}; };
    return {.m = m, .n = 32, .k = 16, .a = matrix(16), .b = matrix(32), .c = matrix(32)};
  }
  Status Multiply(const Product& product) { return gemms_->Multiply(product, memory_, nullptr); }

  Played played_;
  std::unique_ptr<GemmLibrary> gemms_;
  alignas(4096) std::byte memory_[8192] = {};
};

TEST_F(CublasGemmTest, ProductsOfOneKindAreAskedForOnce) {
  EXPECT_TRUE(gemms_->Supports(AProduct()));
  EXPECT_TRUE(Multiply(AProduct()).ok());
  EXPECT_TRUE(Multiply(AProduct()).ok());
  EXPECT_EQ(played_.questions, 1);
  EXPECT_EQ(played_.products, 2);
  EXPECT_TRUE(Multiply(AProduct(/*m=*/128)).ok());
  EXPECT_EQ(played_.questions, 2) << "another shape";
}

TEST_F(CublasGemmTest, EveryRefusalIsKept) {
  int64_t m = 0;
  for (const cublasStatus_t refusal :
       {CUBLAS_STATUS_NOT_SUPPORTED, CUBLAS_STATUS_INVALID_VALUE, CUBLAS_STATUS_ARCH_MISMATCH}) {
    const Product product = AProduct(++m);
    played_.says = refusal;
    played_.questions = 0;
    EXPECT_FALSE(gemms_->Supports(product));
    EXPECT_FALSE(gemms_->Supports(product));
    const std::string message = Multiply(product).message;
    EXPECT_THAT(message, HasSubstr("no algorithm for a product of " + std::to_string(m) +
                                   " x 32 x 16: status " + std::to_string(refusal)));
    EXPECT_EQ(played_.questions, 1) << message;
  }
  EXPECT_EQ(played_.products, 0);
}

TEST_F(CublasGemmTest, AnAlgorithmThatDoesNotWorkAndNoneAreRefusalsToo) {
  played_.state = CUBLAS_STATUS_INVALID_VALUE;
  EXPECT_FALSE(gemms_->Supports(AProduct(1)));
  EXPECT_FALSE(gemms_->Supports(AProduct(1)));
  played_.state = CUBLAS_STATUS_SUCCESS;
  played_.has = 0;
  EXPECT_FALSE(gemms_->Supports(AProduct(2)));
  EXPECT_FALSE(gemms_->Supports(AProduct(2)));
  EXPECT_EQ(played_.questions, 2);
}

TEST_F(CublasGemmTest, WhatCouldNotBeAskedIsAskedAgain) {
  played_.says = CUBLAS_STATUS_ALLOC_FAILED;
  EXPECT_FALSE(gemms_->Supports(AProduct()));
  EXPECT_THAT(Multiply(AProduct()).message, HasSubstr("cannot choose an algorithm"));
  played_.says = CUBLAS_STATUS_SUCCESS;
  EXPECT_TRUE(gemms_->Supports(AProduct()));
  EXPECT_EQ(played_.questions, 3);
}

// A step's operands lie elsewhere than the warm-up's: at other multiples of 16 bytes, all one kind.
TEST_F(CublasGemmTest, OperandsAtWhole16BytesAreOneKind) {
  EXPECT_TRUE(Multiply(AProduct()).ok());
  for (const int64_t offset : {16, 32, 64, 128, 256, 1024}) {
    EXPECT_TRUE(Multiply(AProduct(64, offset)).ok());
  }
  EXPECT_EQ(played_.questions, 1);
  const auto all_are = [&](uint32_t bytes) {
    ASSERT_EQ(played_.alignments.size(), 4u);
    for (const auto& [attribute, alignment] : played_.alignments) EXPECT_EQ(alignment, bytes);
  };
  all_are(16);
  EXPECT_TRUE(Multiply(AProduct(64, 8)).ok());
  EXPECT_EQ(played_.questions, 2);
  all_are(8);
}

TEST_F(CublasGemmTest, PartsOfASumAreAddedInF32) {
  EXPECT_TRUE(Multiply(AProduct()).ok());
  EXPECT_EQ(played_.reductions, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
}

TEST_F(CublasGemmTest, AQuestionKeepsNobodyWaiting) {
  played_.waits_for = 2;  // each is answered only while the other is under way
  std::thread other([&] { EXPECT_TRUE(gemms_->Supports(AProduct(1))); });
  EXPECT_TRUE(gemms_->Supports(AProduct(2)));
  other.join();
  EXPECT_EQ(played_.questions, 2);
}

}  // namespace
}  // namespace terrace::kernels::cuda

// cuBLASLt as the test plays it: objects are numbers.
using terrace::kernels::cuda::played;

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(1);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }

const char* cublasLtGetStatusString(cublasStatus_t status) {
  thread_local std::string text;
  text = "status " + std::to_string(status);
  return text.c_str();
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void*,
                              cublasLtMatrixLayout_t, const void*, cublasLtMatrixLayout_t,
                              const void*, const void*, cublasLtMatrixLayout_t, void*,
                              cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t*, void*, size_t,
                              cudaStream_t) {
  ++played->products;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* found) {
  std::unique_lock lock(played->mutex);
  ++played->questions;
  played->changed.notify_all();
  const bool met = played->changed.wait_for(lock, std::chrono::seconds(20),
                                            [] { return played->questions >= played->waits_for; });
  EXPECT_TRUE(met) << "one question waits for another's answer";
  results[0].state = played->state;
  *found = played->has;
  return played->says;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description, cublasComputeType_t,
                                        cudaDataType_t) {
  *description = reinterpret_cast<cublasLtMatmulDesc_t>(2);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t,
                                              const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType, uint64_t,
                                          uint64_t, int64_t) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(3);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t) { return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(4);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t which,
                                                    const void* value, size_t bytes) {
  if (bytes != sizeof(uint32_t)) return CUBLAS_STATUS_SUCCESS;
  const std::lock_guard lock(played->mutex);
  uint32_t* const to = which == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK
                           ? &played->reductions
                           : &played->alignments[which];
  std::memcpy(to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
