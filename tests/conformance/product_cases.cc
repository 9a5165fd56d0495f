// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "tests/conformance/op_case_list.h"

namespace terrace::kernels::conformance {
namespace {

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;
constexpr DType kF16 = DType::kF16;

const TensorShape kAbsent;

struct Product {
  int64_t m = 0, n = 0, k = 0;
};

std::vector<TensorShape> MatmulOperands(const Form& form, const Product& p,
                                        const MatmulAttrs& attrs, DType c_dtype) {
  const Form c_form = {.dtype = c_dtype, .gap = form.gap};
  return {form.Act(attrs.transpose_a ? Sizes{p.k, p.m} : Sizes{p.m, p.k}),
          form.Act(attrs.transpose_b ? Sizes{p.n, p.k} : Sizes{p.k, p.n}),
          c_form.Act({p.m, p.n}),
          kAbsent,
          kAbsent,
          kAbsent};
}

void AddMatmulLayouts(const Form& form, CaseList* list) {
  // The second and third have few rows, of more columns than sums are kept of.
  for (const Product& p :
       {Product{3, 5, 7}, Product{2, 1100, 131}, Product{11, 1100, 131}, Product{130, 176, 100}}) {
    for (int bits = 0; bits < 16; ++bits) {
      const MatmulAttrs attrs = {
          .transpose_a = (bits & 1) != 0,
          .transpose_b = (bits & 2) != 0,
          .accumulate = (bits & 4) != 0,
          .precision = (bits & 8) != 0 ? FastOf(form.dtype) : MatmulPrecision::kF32};
      const std::string suffix = form.name + "_" + Text(p.m) + "x" + Text(p.n) + "x" + Text(p.k) +
                                 (attrs.transpose_a ? "_ta" : "") +
                                 (attrs.transpose_b ? "_tb" : "") +
                                 (attrs.accumulate ? "_acc" : "") + ((bits & 8) ? "_fast" : "");
      const DType c_dtype = attrs.accumulate ? kF32 : form.dtype;
      list->Add(Op::kMatmul, suffix, attrs, MatmulOperands(form, p, attrs, c_dtype));
    }
  }
}

// Only where operands are f32: others are exact in TF32, or converted as for f32 products.
void AddTf32Products(const Form& form, const Product& p, CaseList* list) {
  if (form.dtype != kF32) return;
  for (int bits = 0; bits < 8; ++bits) {
    const MatmulAttrs attrs = {.transpose_a = (bits & 1) != 0,
                               .transpose_b = (bits & 2) != 0,
                               .accumulate = (bits & 4) != 0,
                               .precision = MatmulPrecision::kTF32};
    list->Add(Op::kMatmul, form.name + "_tf32_" + Text(bits), attrs,
              MatmulOperands(form, p, attrs, kF32));
  }
  for (const Epilogue epilogue : {Epilogue::kNone, Epilogue::kGelu, Epilogue::kGeluGrad}) {
    const MatmulAttrs attrs = {
        .transpose_b = true, .epilogue = epilogue, .precision = MatmulPrecision::kTF32};
    std::vector<TensorShape> operands = MatmulOperands(form, p, attrs, kF32);
    if (epilogue != Epilogue::kGeluGrad) operands[3] = Dense(kF32, {p.n});
    if (epilogue == Epilogue::kNone) operands[4] = operands[2];
    if (epilogue != Epilogue::kNone) operands[5] = operands[2];
    list->Add(Op::kMatmul, form.name + "_tf32_epilogue_" + Text(static_cast<int>(epilogue)), attrs,
              operands);
  }
}

// Every mixture of element types.
void AddMixtures(const Form& form, const Product& p, CaseList* list) {
  constexpr DType kTypes[] = {kF32, kBF16, kF16};
  for (const MatmulPrecision precision :
       {MatmulPrecision::kF32, MatmulPrecision::kBF16, MatmulPrecision::kF16}) {
    for (int mixture = 0; mixture < 27; ++mixture) {
      std::vector<TensorShape> operands = MatmulOperands(form, p, {}, kF32);
      std::string suffix = "types";
      for (int i = 0, rest = mixture; i < 3; ++i, rest /= 3) {
        operands[i].dtype = kTypes[rest % 3];
        suffix += "_" + std::string(Name(operands[i].dtype));
      }
      if (precision == MatmulPrecision::kBF16) suffix += "_in_bf16";
      if (precision == MatmulPrecision::kF16) suffix += "_in_f16";
      list->Add(Op::kMatmul, suffix, MatmulAttrs{.precision = precision}, operands);
    }
  }
}

// Products as a linear layer has them: forward, the gradient of its input, that of its weight
// either way; then every layout, and every epilogue. Once in sizes that no unit of 8 bits takes as
// they are, once in whole ones, where nothing is padded.
void AddFp8Products(const Form& form, CaseList* list) {
  for (const Product& p : {Product{37, 21, 45}, Product{80, 96, 64}}) {
    const std::string name = form.name + "_fp8_" + Text(p.m) + "_";
    for (int bits = 0; bits < 8; ++bits) {
      for (const auto gradient : {Fp8Gradient::kNone, Fp8Gradient::kA, Fp8Gradient::kB}) {
        const MatmulAttrs attrs = {.transpose_a = (bits & 1) != 0,
                                   .transpose_b = (bits & 2) != 0,
                                   .accumulate = (bits & 4) != 0,
                                   .precision = MatmulPrecision::kFP8,
                                   .gradient = gradient};
        std::vector<TensorShape> operands =
            MatmulOperands(form, p, attrs, attrs.accumulate ? kF32 : form.dtype);
        if (gradient == Fp8Gradient::kNone) operands[1].dtype = kF32;  // a weight
        list->Add(Op::kMatmul, name + Text(bits) + "_" + Text(static_cast<int>(gradient)), attrs,
                  operands);
      }
    }
    const auto add = [&](const std::string& suffix, Epilogue epilogue, bool bias, bool residual,
                         bool aux) {
      const MatmulAttrs attrs = {
          .transpose_b = true, .epilogue = epilogue, .precision = MatmulPrecision::kFP8};
      std::vector<TensorShape> operands = MatmulOperands(form, p, attrs, form.dtype);
      if (bias) operands[3] = Dense(kF32, {p.n});
      if (residual) operands[4] = operands[2];
      if (aux) operands[5] = operands[2];
      list->Add(Op::kMatmul, name + suffix, attrs, operands);
    };
    add("bias", Epilogue::kNone, true, false, false);
    add("residual", Epilogue::kNone, false, true, false);
    add("both", Epilogue::kNone, true, true, false);
    add("gelu", Epilogue::kGelu, true, false, true);
    add("gelu_not_kept", Epilogue::kGelu, true, false, false);
    add("gelu_grad", Epilogue::kGeluGrad, false, false, true);
  }
}

void AddMatmulEpilogues(const Form& form, CaseList* list) {
  const Product p = {66, 72, 40};
  for (MatmulPrecision precision : {MatmulPrecision::kF32, FastOf(form.dtype)}) {
    const std::string suffix = form.name + Suffix(precision);
    const auto add = [&](const std::string& name, Epilogue epilogue, bool bias, bool residual,
                         bool aux) -> OpCase& {
      const MatmulAttrs attrs = {.transpose_b = true, .epilogue = epilogue, .precision = precision};
      std::vector<TensorShape> operands = MatmulOperands(form, p, attrs, form.dtype);
      if (bias) operands[3] = Dense(kF32, {p.n});
      if (residual) operands[4] = operands[2];
      if (aux) operands[5] = operands[2];
      return list->Add(Op::kMatmul, suffix + "_" + name, attrs, operands);
    };
    add("bias", Epilogue::kNone, true, false, false);
    add("residual", Epilogue::kNone, true, true, false);
    add("residual_in_place", Epilogue::kNone, true, true, false).shared = {{4, 2}};
    add("gelu", Epilogue::kGelu, true, false, true);
    add("gelu_not_kept", Epilogue::kGelu, true, false, false);
    add("gelu_grad", Epilogue::kGeluGrad, false, false, true);
  }
  AddTf32Products(form, p, list);
  AddFp8Products(form, list);
  if (form.name == "f32") AddMixtures(form, p, list);
}

}  // namespace

void AddProducts(const Form& form, CaseList* list) {
  AddMatmulLayouts(form, list);
  AddMatmulEpilogues(form, list);
}

}  // namespace terrace::kernels::conformance
