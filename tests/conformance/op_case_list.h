// How the files that list op cases build them: shapes, forms of activations, the list itself.
//
// Internal to tests/conformance. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/op_case.h"

namespace terrace::kernels::conformance {

using Sizes = std::vector<int64_t>;

inline TensorShape Dense(DType dtype, const Sizes& sizes) {
  TensorShape shape = {.dtype = dtype, .dims = static_cast<int>(sizes.size())};
  for (size_t d = 0; d < sizes.size(); ++d) shape.size[d] = sizes[d];
  shape.row_stride = shape.RowElements();
  return shape;
}

// Element type of the activations, and whether their rows have gaps.
struct Form {
  std::string name;
  DType dtype = DType::kF32;
  int64_t gap = 0;

  TensorShape Act(const Sizes& sizes) const { return Of(dtype, sizes); }
  // Another type with the same gaps.
  TensorShape Of(DType type, const Sizes& sizes) const {
    TensorShape shape = Dense(type, sizes);
    if (shape.dims > 1) shape.row_stride += gap;
    return shape;
  }
};

// The fast products of activations of this type.
inline MatmulPrecision FastOf(DType activation) {
  return activation == DType::kF16 ? MatmulPrecision::kF16 : MatmulPrecision::kBF16;
}

inline std::string Text(int64_t value) { return std::to_string(value); }

// What of a case's name says its precision; f32 says nothing.
inline std::string Suffix(MatmulPrecision precision) {
  switch (precision) {
    case MatmulPrecision::kF32:
      return "";
    case MatmulPrecision::kBF16:
      return "_fast";
    case MatmulPrecision::kTF32:
      return "_tf32";
    case MatmulPrecision::kF16:
      return "_fast";
    case MatmulPrecision::kFP8:
      return "_fp8";
  }
  return "";
}

class CaseList {
 public:
  // Operands that are left out at the end are absent.
  OpCase& Add(Op op, const std::string& suffix, OpAttrs attrs, std::vector<TensorShape> operands) {
    operands.resize(static_cast<size_t>(OperandCount(op)));
    cases_.push_back({.name = std::string(Name(op)) + "_" + suffix,
                      .op = op,
                      .attrs = std::move(attrs),
                      .operands = std::move(operands)});
    return cases_.back();
  }
  void Add(OpCase op_case) { cases_.push_back(std::move(op_case)); }
  std::vector<OpCase> Take() { return std::move(cases_); }

 private:
  std::vector<OpCase> cases_;
};

// The ops of split layouts, forward (layout_cases.cc).
void AddLayoutCases(const Form& form, CaseList* list);
// Matrix products: layouts, epilogues, precisions (product_cases.cc).
void AddProducts(const Form& form, CaseList* list);
// Attention with terms (score_cases.cc).
void AddScoreTerms(const Form& form, CaseList* list);
// Attention in tiles, in bf16 (attention_cases.cc).
void AddTiledAttention(CaseList* list);
// Updates by all rules (update_cases.cc).
void AddUpdates(CaseList* list);

}  // namespace terrace::kernels::conformance
