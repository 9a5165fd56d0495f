// A matrix product with its operands, its double-precision reference, and a plain f32 product to
// compare errors with.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cpu/gemm_engine.h"

namespace terrace::kernels::cpu {

// A stored matrix whose rows are `padding` elements longer than they need be.
class HostMatrix {
 public:
  HostMatrix() = default;
  HostMatrix(int64_t rows, int64_t columns, DType dtype, int64_t padding = 0);

  float Get(int64_t row, int64_t column) const;
  void Set(int64_t row, int64_t column, float value);  // rounds where the element type asks for it
  void Fill(const std::function<float()>& next);       // padding included
  Matrix View();

  int64_t rows = 0, columns = 0;
  std::vector<std::byte> bytes;

 private:
  DType dtype_ = DType::kF32;
  int64_t stride_ = 0;
};

float RoundToBF16(float value);

const char* Name(GemmPath path);

struct GemmCase {
  int64_t m = 1, n = 1, k = 1;
  bool transpose_a = false, transpose_b = false, accumulate = false;
  bool bias = false, residual = false, aux = false;
  Epilogue epilogue = Epilogue::kNone;
  MatmulPrecision precision = MatmulPrecision::kF32;
  DType a_type = DType::kF32, b_type = DType::kF32, c_type = DType::kF32;
  int64_t padding = 0;  // of every row
  GemmPath path = GemmPath::kVectors;

  std::string ToString() const;
};

// The operands of a case, random unless filled otherwise.
class GemmProblem {
 public:
  explicit GemmProblem(const GemmCase& problem, uint64_t seed = 1);

  // C and aux as they were before; then one run with that many threads.
  void Run(int threads);
  // What C should hold, in double.
  // Before the epilogue.
  std::vector<double> Sums() const;
  std::vector<double> Expected() const;
  // For each element of C, the sum of |a b| and of what is added to it: what rounding errors are
  // relative to.
  std::vector<double> Magnitudes() const;
  // The product in f32 by fused multiply-adds in the order of k, without epilogue.
  std::vector<double> PlainF32() const;

  double A(int64_t i,
           int64_t p) const;  // as multiplied: rounded to bf16 where the precision says so
  double B(int64_t p, int64_t j) const;

  const GemmCase problem;
  bool residual_is_c = false;
  HostMatrix a, b, c, residual, aux;
  std::vector<float> bias;

 private:
  // A and B as multiplied, both with K contiguous.
  std::vector<double> RowsOfA() const;
  std::vector<double> ColumnsOfB() const;
  // What is added to element (i, j) of the product before the activation.
  std::vector<float> Addends(int64_t i, int64_t j) const;

  HostMatrix c_before_, aux_before_;
};

}  // namespace terrace::kernels::cpu
