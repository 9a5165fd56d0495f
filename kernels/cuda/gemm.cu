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

// The library does it all, if it can. `whole` is all of the product as it is asked for in parts.
bool AsOneProduct(const Gemm& gemm, const Product& whole, const GemmLibrary& library,
                  Product* product) {
  if (gemm.epilogue != Epilogue::kNone || !AllowsFusedBias(gemm.bias)) return false;
  // In fp8 cuBLASLt knows no f32 bias; and N is padded, or not.
  if (whole.fp8() && (gemm.bias != nullptr || whole.n != gemm.n)) return false;
  *product = whole;
  product->c = gemm.c;
  product->bias = gemm.bias;
  product->added = gemm.accumulate ? gemm.c : gemm.residual;
  const bool one_type = product->added.data == nullptr || product->added.dtype == gemm.c.dtype;
  const DType stored = whole.fp8() ? DType::kBF16 : whole.a.dtype;
  const bool stores = gemm.c.dtype == DType::kF32 || gemm.c.dtype == stored;
  return one_type && stores && library.Supports(*product);
}

// The product `whole`, whose operands are ready and whose c is `staged`, and the rest of the op:
// all at once, or some rows at a time.
Status MultiplyAndFinish(const Gemm& gemm, const Product& whole, int64_t rows_at_once,
                         std::byte* library_scratch, const Context& context) {
  const GemmLibrary& library = *context.gemms;
  Product product;
  if (AsOneProduct(gemm, whole, library, &product)) {
    return library.Multiply(product, library_scratch, context.stream);
  }
  const int64_t element_bytes = whole.fp8() ? 1 : SizeOf(whole.a.dtype);
  for (int64_t first = 0; first < gemm.m; first += rows_at_once) {
    const int64_t rows = std::min(rows_at_once, gemm.m - first);
    Product part = whole;
    part.m = rows;
    part.a.data = static_cast<std::byte*>(whole.a.data) +
                  first * (whole.transpose_a ? 1 : whole.a.row_stride) * element_bytes;
    Status status = library.Multiply(part, library_scratch, context.stream);
    if (status.ok()) status = Finish(gemm, whole.c, first, rows, context);
    if (!status.ok()) return status;
  }
  return {};
}

// One operand, quantised into `codes`; the product learns of it.
Status Quantise(const Fp8Quantisation& quantisation, const Context& context, Matrix* matrix,
                Fp8Codes* codes) {
  *matrix = {.data = quantisation.codes, .row_stride = PadFp8(quantisation.k)};
  *codes = {.format = quantisation.format, .factor = quantisation.parts + kFp8Parts};
  return QuantiseFp8(quantisation, context);
}

Status RunFp8(const Gemm& gemm, std::byte* scratch, const Context& context) {
  const Fp8Scratch sizes = Fp8ScratchSizes(gemm.m, gemm.n, gemm.k);
  std::byte* library_scratch = scratch;  // first: it wants the best alignment
  std::byte* a = scratch + kGemmLibraryBytes;
  std::byte* b = a + sizes.a_bytes;
  std::byte* parts = b + sizes.b_bytes;
  std::byte* staged = parts + 2 * sizes.parts_bytes;
  const auto format = [&](Fp8Gradient operand) {
    return gemm.gradient == operand ? Fp8Format::kE5M2 : Fp8Format::kE4M3;
  };
  Product whole = {.m = gemm.m,
                   .n = PadFp8(gemm.n),
                   .k = PadFp8(gemm.k),
                   .transpose_b = true,
                   .c = {staged, DType::kF32, sizes.product.product_columns}};
  Status status = Quantise({.from = gemm.a,
                            .transpose = gemm.transpose_a,
                            .lines = gemm.m,
                            .padded_lines = gemm.m,
                            .k = gemm.k,
                            .format = format(Fp8Gradient::kA),
                            .codes = a,
                            .parts = reinterpret_cast<float*>(parts)},
                           context, &whole.a, &whole.a_codes);
  if (!status.ok()) return status;
  status = Quantise({.from = gemm.b,
                     .transpose = !gemm.transpose_b,
                     .lines = gemm.n,
                     .padded_lines = PadFp8(gemm.n),
                     .k = gemm.k,
                     .format = format(Fp8Gradient::kB),
                     .codes = b,
                     .parts = reinterpret_cast<float*>(parts + sizes.parts_bytes)},
                    context, &whole.b, &whole.b_codes);
  if (!status.ok()) return status;
  return MultiplyAndFinish(gemm, whole, sizes.product.product_rows, library_scratch, context);
}

}  // namespace

Status Convert(const Matrix& from, const Matrix& to, int64_t rows, int64_t columns,
               const Context& context) {
  const TensorView operands[] = {ViewOf(from, 0, rows, columns), ViewOf(to, 0, rows, columns)};
  return LaunchElements("conversion", operands, ConvertOp(), context);
}

Status RunGemm(const Gemm& gemm, std::byte* scratch, const Context& context) {
  if (gemm.precision == MatmulPrecision::kFP8) return RunFp8(gemm, scratch, context);
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
  const Product whole = {.m = gemm.m,
                         .n = gemm.n,
                         .k = gemm.k,
                         .transpose_a = gemm.transpose_a,
                         .transpose_b = gemm.transpose_b,
                         .tf32 = gemm.precision == MatmulPrecision::kTF32,
                         .a = a,
                         .b = b,
                         .c = {scratch, DType::kF32, sizes.product_columns}};
  return MultiplyAndFinish(gemm, whole, sizes.product_rows, library_scratch, context);
}

}  // namespace terrace::kernels::cuda
