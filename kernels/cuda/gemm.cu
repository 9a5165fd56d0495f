// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/math.h"

namespace terrace::kernels::cuda {
namespace {

struct ConvertOp {  // from, to
  static constexpr int kIn = 0b01, kOut = 0b10;
  __device__ void Apply(float* e, int64_t) const { e[1] = e[0]; }
};

// product, residual or zeros, aux (read), c, aux (written)
template <Epilogue kEpilogue>
struct EpilogueOp {
  static constexpr bool kReadsAux = kEpilogue == Epilogue::kGeluGrad;
  static constexpr bool kWritesAux = kEpilogue == Epilogue::kGelu;
  static constexpr int kIn = kReadsAux ? 0b00111 : 0b00011;
  static constexpr int kOut = kWritesAux ? 0b11000 : 0b01000;
  const float* bias;  // or null
  DType kept;         // how aux is stored: c is the GELU of what is stored

  __device__ void Apply(float* e, int64_t column) const {
    float value = e[0];
    if (bias != nullptr) value += bias[column];
    value += e[1];
    if constexpr (kEpilogue == Epilogue::kGelu) {
      if (kept == DType::kBF16) value = RoundToBF16(value);
      if (kept == DType::kF16) value = RoundToF16(value);
      e[4] = value;
      value = Gelu(value);
    } else if constexpr (kEpilogue == Epilogue::kGeluGrad) {
      value *= GeluSlope(e[2]);
    }
    e[3] = value;
  }
};

// GELU whose argument nobody keeps.
struct GeluOnlyOp {
  static constexpr int kIn = 0b00011, kOut = 0b01000;
  const float* bias;
  __device__ void Apply(float* e, int64_t column) const {
    float value = e[0];
    if (bias != nullptr) value += bias[column];
    e[3] = Gelu(value + e[1]);
  }
};

TensorView ViewOf(const Matrix& matrix, int64_t first_row, int64_t rows, int64_t columns) {
  TensorView view;
  if (matrix.data == nullptr) return view;
  view.dtype = matrix.dtype;
  view.dims = 2;
  view.size = {rows, columns};
  view.row_stride = matrix.row_stride;
  view.data =
      static_cast<std::byte*>(matrix.data) + first_row * matrix.row_stride * SizeOf(matrix.dtype);
  return view;
}

Matrix RowsOf(const Matrix& matrix, int64_t first_row) {
  Matrix rows = matrix;
  rows.data =
      static_cast<std::byte*>(matrix.data) + first_row * matrix.row_stride * SizeOf(matrix.dtype);
  return rows;
}

Status Finish(const Gemm& gemm, const Matrix& product, int64_t first, int64_t rows,
              const Context& context) {
  const Matrix& added = gemm.accumulate ? gemm.c : gemm.residual;
  const TensorView c = ViewOf(gemm.c, first, rows, gemm.n);
  const TensorView aux = ViewOf(gemm.aux, first, rows, gemm.n);
  const TensorView operands[] = {ViewOf(product, 0, rows, gemm.n),
                                 ViewOf(added, first, rows, gemm.n), aux, c, aux};
  const char* what = "matmul epilogue";
  switch (gemm.epilogue) {
    case Epilogue::kNone:
      return LaunchElements(what, operands, EpilogueOp<Epilogue::kNone>{gemm.bias, DType::kF32},
                            context, true);
    case Epilogue::kGelu:
      if (gemm.aux.data == nullptr) {
        return LaunchElements(what, operands, GeluOnlyOp{gemm.bias}, context, true);
      }
      return LaunchElements(what, operands, EpilogueOp<Epilogue::kGelu>{gemm.bias, gemm.aux.dtype},
                            context, true);
    case Epilogue::kGeluGrad:
      return LaunchElements(what, operands, EpilogueOp<Epilogue::kGeluGrad>{gemm.bias, DType::kF32},
                            context, true);
  }
  return {"matmul: this epilogue does not exist"};
}

// cuBLASLt adds biases that lie anywhere else with accesses that the address does not allow,
// whatever alignment it was told: the kernel traps, and the device is lost to the process.
bool AllowsFusedBias(const float* bias) { return reinterpret_cast<uintptr_t>(bias) % 16 == 0; }

// The library does it all, if it can.
bool AsOneProduct(const Gemm& gemm, const Matrix& a, const Matrix& b, const GemmLibrary& library,
                  Product* product) {
  if (gemm.epilogue != Epilogue::kNone || !AllowsFusedBias(gemm.bias)) return false;
  *product = {.m = gemm.m,
              .n = gemm.n,
              .k = gemm.k,
              .transpose_a = gemm.transpose_a,
              .transpose_b = gemm.transpose_b,
              .tf32 = gemm.precision == MatmulPrecision::kTF32,
              .a = a,
              .b = b,
              .c = gemm.c,
              .bias = gemm.bias,
              .added = gemm.accumulate ? gemm.c : gemm.residual};
  const bool one_type = product->added.data == nullptr || product->added.dtype == gemm.c.dtype;
  return one_type && (gemm.c.dtype == DType::kF32 || gemm.c.dtype == a.dtype) &&
         library.Supports(*product);
}

}  // namespace

Status Convert(const Matrix& from, const Matrix& to, int64_t rows, int64_t columns,
               const Context& context) {
  const TensorView operands[] = {ViewOf(from, 0, rows, columns), ViewOf(to, 0, rows, columns)};
  return LaunchElements("conversion", operands, ConvertOp(), context);
}

Status RunGemm(const Gemm& gemm, std::byte* scratch, const Context& context) {
  const DType type = ArithmeticType(gemm.precision);
  const GemmScratch sizes = GemmScratchSizes({.m = gemm.m,
                                              .n = gemm.n,
                                              .k = gemm.k,
                                              .transpose_a = gemm.transpose_a,
                                              .transpose_b = gemm.transpose_b,
                                              .converts_a = gemm.a.dtype != type,
                                              .converts_b = gemm.b.dtype != type,
                                              .stages_product = true,
                                              .precision = gemm.precision});
  const GemmLibrary& library = *context.gemms;
  std::byte* library_scratch = scratch;  // first: it wants the best alignment
  scratch += kGemmLibraryBytes;
  Matrix a = gemm.a, b = gemm.b;
  if (a.dtype != type) {
    a = {scratch, type, sizes.a_columns};
    Status status = Convert(gemm.a, a, gemm.transpose_a ? gemm.k : gemm.m,
                            gemm.transpose_a ? gemm.m : gemm.k, context);
    if (!status.ok()) return status;
  }
  scratch += sizes.a_bytes;
  if (b.dtype != type) {
    b = {scratch, type, sizes.b_columns};
    Status status = Convert(gemm.b, b, gemm.transpose_b ? gemm.n : gemm.k,
                            gemm.transpose_b ? gemm.k : gemm.n, context);
    if (!status.ok()) return status;
  }
  scratch += sizes.b_bytes;
  Product product;
  if (AsOneProduct(gemm, a, b, library, &product)) {
    return library.Multiply(product, library_scratch, context.stream);
  }
  const Matrix staged = {scratch, DType::kF32, sizes.product_columns};
  for (int64_t first = 0; first < gemm.m; first += sizes.product_rows) {
    const int64_t rows = std::min(sizes.product_rows, gemm.m - first);
    Matrix a_rows = a;
    if (gemm.transpose_a) {
      a_rows.data = static_cast<std::byte*>(a.data) + first * SizeOf(type);
    } else {
      a_rows = RowsOf(a, first);
    }
    const Product part = {.m = rows,
                          .n = gemm.n,
                          .k = gemm.k,
                          .transpose_a = gemm.transpose_a,
                          .transpose_b = gemm.transpose_b,
                          .tf32 = gemm.precision == MatmulPrecision::kTF32,
                          .a = a_rows,
                          .b = b,
                          .c = staged};
    Status status = library.Multiply(part, library_scratch, context.stream);
    if (status.ok()) status = Finish(gemm, staged, first, rows, context);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace terrace::kernels::cuda
