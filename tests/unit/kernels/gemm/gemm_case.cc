// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kernels/gemm/gemm_case.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>

#include "kernels/gemm_workspace.h"

namespace terrace::kernels::cpu {
namespace {

double GeluSigmoid(double x) {
  return 1 / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double Gelu(double x) { return x * GeluSigmoid(x); }
double GeluDerivative(double x) {
  const double s = GeluSigmoid(x);
  return s + x * s * (1 - s) * 2 * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

}  // namespace

float RoundToBF16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if (!std::isnan(value)) bits += 0x7fff + ((bits >> 16) & 1);
  return std::bit_cast<float>(bits & 0xffff0000u);
}

HostMatrix::HostMatrix(int64_t rows, int64_t columns, DType dtype, int64_t padding)
    : rows(rows),
      columns(columns),
      bytes(rows * (columns + padding) * SizeOf(dtype)),
      dtype_(dtype),
      stride_(columns + padding) {}

float HostMatrix::Get(int64_t row, int64_t column) const {
  const std::byte* at = bytes.data() + (row * stride_ + column) * SizeOf(dtype_);
  if (dtype_ == DType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

void HostMatrix::Set(int64_t row, int64_t column, float value) {
  std::byte* at = bytes.data() + (row * stride_ + column) * SizeOf(dtype_);
  if (dtype_ == DType::kF32) {
    std::memcpy(at, &value, sizeof(value));
  } else {
    const auto bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(RoundToBF16(value)) >> 16);
    std::memcpy(at, &bits, sizeof(bits));
  }
}

void HostMatrix::Fill(const std::function<float()>& next) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) Set(row, column, next());
  }
  // What lies between rows must neither be read nor written.
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = columns; column < stride_; ++column) Set(row, column, std::nanf(""));
  }
}

Matrix HostMatrix::View() { return {bytes.data(), dtype_, stride_}; }

const char* Name(GemmPath path) {
  switch (path) {
    case GemmPath::kAmx:
      return "amx";
    case GemmPath::kBF16Vectors:
      return "bf16 vectors";
    case GemmPath::kVectors:
      return "vectors";
  }
  return "";
}

std::string GemmCase::ToString() const {
  const auto type = [](DType dtype) { return std::string(dtype == DType::kF32 ? "f32" : "bf16"); };
  std::string text = std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k);
  text += std::string(" ") + Name(path) + (precision == MatmulPrecision::kF32 ? " f32" : " bf16");
  text += " a " + type(a_type) + (transpose_a ? " transposed" : "") + ", b " + type(b_type) +
          (transpose_b ? " transposed" : "") + ", c " + type(c_type);
  if (accumulate) text += " accumulate";
  if (bias) text += " bias";
  if (residual) text += " residual";
  if (epilogue == Epilogue::kGelu) text += aux ? " gelu+aux" : " gelu";
  if (epilogue == Epilogue::kGeluGrad) text += " gelu_grad";
  return text + " padding " + std::to_string(padding);
}

GemmProblem::GemmProblem(const GemmCase& problem, uint64_t seed)
    : problem(problem),
      a(problem.transpose_a ? problem.k : problem.m, problem.transpose_a ? problem.m : problem.k,
        problem.a_type, problem.padding),
      b(problem.transpose_b ? problem.n : problem.k, problem.transpose_b ? problem.k : problem.n,
        problem.b_type, problem.padding),
      c(problem.m, problem.n, problem.c_type, problem.padding),
      residual(problem.m, problem.n, problem.c_type, problem.padding),
      aux(problem.m, problem.n, problem.c_type, problem.padding),
      bias(problem.n) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const auto next = [&] { return normal(random); };
  for (HostMatrix* matrix : {&a, &b, &c, &residual, &aux}) matrix->Fill(next);
  for (float& value : bias) value = next();
  c_before_ = c;
  aux_before_ = aux;
}

void GemmProblem::Run(int threads) {
  c = c_before_;
  aux = aux_before_;
  const int64_t bytes =
      GemmWorkspaceBytes(problem.m, problem.n, problem.k, problem.precision, threads);
  // A guard behind the workspace shows a size that is too small.
  constexpr int64_t kGuard = 4096;
  std::vector<std::byte> memory(bytes + kGuard + 64, std::byte{0xab});
  std::byte* workspace =
      reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
  Gemm gemm{.m = problem.m,
            .n = problem.n,
            .k = problem.k,
            .transpose_a = problem.transpose_a,
            .transpose_b = problem.transpose_b,
            .accumulate = problem.accumulate,
            .epilogue = problem.epilogue,
            .precision = problem.precision,
            .a = a.View(),
            .b = b.View(),
            .c = c.View()};
  if (problem.bias) gemm.bias = bias.data();
  if (problem.residual) gemm.residual = residual_is_c ? c.View() : residual.View();
  if (problem.aux) gemm.aux = aux.View();
  const Status status = RunGemmOn(problem.path, gemm, {threads, workspace, bytes});
  EXPECT_TRUE(status.ok()) << status.message;
  for (int64_t i = 0; i < kGuard; ++i) {
    ASSERT_EQ(workspace[bytes + i], std::byte{0xab}) << "wrote past the workspace";
  }
}

double GemmProblem::A(int64_t i, int64_t p) const {
  const float value = problem.transpose_a ? a.Get(p, i) : a.Get(i, p);
  return problem.precision == MatmulPrecision::kBF16 ? RoundToBF16(value) : value;
}

double GemmProblem::B(int64_t p, int64_t j) const {
  const float value = problem.transpose_b ? b.Get(j, p) : b.Get(p, j);
  return problem.precision == MatmulPrecision::kBF16 ? RoundToBF16(value) : value;
}

std::vector<double> GemmProblem::RowsOfA() const {
  std::vector<double> values;
  values.reserve(problem.m * problem.k);
  for (int64_t i = 0; i < problem.m; ++i) {
    for (int64_t p = 0; p < problem.k; ++p) values.push_back(A(i, p));
  }
  return values;
}

std::vector<double> GemmProblem::ColumnsOfB() const {
  std::vector<double> values;
  values.reserve(problem.n * problem.k);
  for (int64_t j = 0; j < problem.n; ++j) {
    for (int64_t p = 0; p < problem.k; ++p) values.push_back(B(p, j));
  }
  return values;
}

std::vector<float> GemmProblem::Addends(int64_t i, int64_t j) const {
  std::vector<float> addends;
  if (problem.accumulate) addends.push_back(c_before_.Get(i, j));
  if (problem.bias) addends.push_back(bias[j]);
  if (problem.residual) addends.push_back(residual.Get(i, j));
  return addends;
}

std::vector<double> GemmProblem::Sums() const {
  const std::vector<double> rows = RowsOfA(), columns = ColumnsOfB();
  std::vector<double> sums;
  for (int64_t i = 0; i < problem.m; ++i) {
    for (int64_t j = 0; j < problem.n; ++j) {
      const double* x = rows.data() + i * problem.k;
      const double* y = columns.data() + j * problem.k;
      double value = std::inner_product(x, x + problem.k, y, 0.0);
      for (const float addend : Addends(i, j)) value += addend;
      sums.push_back(value);
    }
  }
  return sums;
}

std::vector<double> GemmProblem::Expected() const {
  std::vector<double> expected;
  const std::vector<double> sums = Sums();
  for (int64_t i = 0; i < problem.m; ++i) {
    for (int64_t j = 0; j < problem.n; ++j) {
      double value = sums[expected.size()];
      switch (problem.epilogue) {
        case Epilogue::kNone:
          break;
        case Epilogue::kGelu:
          value = Gelu(value);
          break;
        case Epilogue::kGeluGrad:
          value *= GeluDerivative(aux_before_.Get(i, j));
          break;
      }
      expected.push_back(value);
    }
  }
  return expected;
}

std::vector<double> GemmProblem::Magnitudes() const {
  const std::vector<double> rows = RowsOfA(), columns = ColumnsOfB();
  std::vector<double> magnitudes;
  for (int64_t i = 0; i < problem.m; ++i) {
    for (int64_t j = 0; j < problem.n; ++j) {
      const double* x = rows.data() + i * problem.k;
      const double* y = columns.data() + j * problem.k;
      double sum = std::inner_product(x, x + problem.k, y, 0.0, std::plus<>(),
                                      [](double u, double v) { return std::abs(u * v); });
      for (const float addend : Addends(i, j)) sum += std::abs(addend);
      magnitudes.push_back(sum);
    }
  }
  return magnitudes;
}

std::vector<double> GemmProblem::PlainF32() const {
  const std::vector<double> rows = RowsOfA(), columns = ColumnsOfB();
  std::vector<double> result;
  for (int64_t i = 0; i < problem.m; ++i) {
    for (int64_t j = 0; j < problem.n; ++j) {
      float sum = 0;
      for (int64_t p = 0; p < problem.k; ++p) {
        sum = std::fma(static_cast<float>(rows[i * problem.k + p]),
                       static_cast<float>(columns[j * problem.k + p]), sum);
      }
      result.push_back(sum);
    }
  }
  return result;
}

}  // namespace terrace::kernels::cpu
