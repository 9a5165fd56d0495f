// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <vector>

#include "kernels/optimizer_rule.h"
#include "tests/conformance/op_case_list.h"

namespace terrace::kernels::conformance {
namespace {

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;
constexpr DType kI32 = DType::kI32;

const TensorShape kAbsent;

// Two tensors and what is between them: columns of one that is split, whole rows of another.
std::shared_ptr<const std::vector<RoundingPart>> RoundingOf(int64_t elements) {
  const int64_t columns = 40, rows = elements / 2 / columns;
  return std::make_shared<std::vector<RoundingPart>>(
      std::vector<RoundingPart>{{.begin = -3,
                                 .rows = 1 + rows,
                                 .columns = columns,
                                 .row_stride = columns,
                                 .first = 80,
                                 .tensor_stride = 3 * columns,
                                 .key = {{17, 4}}},
                                {.begin = (2 + rows) * columns,
                                 .rows = 1,
                                 .columns = elements,
                                 .row_stride = elements,
                                 .first = 8,
                                 .key = {{17, 5}}}});
}

// Updates by a rule: weights in f32 and bf16, gradients and moments in all their formats.
void AddUpdatesBy(const OptimizerRow& rule, int64_t n, CaseList* list) {
  const TensorShape x = Dense(kF32, {n}), half = Dense(kBF16, {n}), four = Dense(kF32, {4});
  const TensorShape step = Dense(kI32, {1});
  const auto moment = [&](int index, const TensorShape& shape) {
    return index < rule.moments ? shape : kAbsent;
  };
  const std::string name = Text(n) + "_" + std::string(rule.name);
  UpdateAttrs attrs{.rule = rule.rule, .beta2 = 0.95f, .weight_decay = 0.1f};
  UpdateAttrs rounded = attrs;
  rounded.rounding.parts = RoundingOf(n);
  const auto add = [&](const std::string& what, const TensorShape& grad, const TensorShape& rests) {
    const TensorShape m = moment(0, rests), v = moment(1, rests);
    list->Add(Op::kUpdate, name + what, attrs, {grad, x, m, v, four, four});
    list->Add(Op::kUpdateStochastic, name + what, rounded, {grad, half, m, v, four, four, step});
  };
  add("", x, x);
  attrs.lr_scale = rounded.lr_scale = 0.3f;
  add("_grad_bf16_lr_scale", half, x);
  if (rule.moments == 0) return;
  add("_bf16_moments", x, half);
  for (const int64_t block : {16, 128, 256}) {
    const TensorShape codes = Dense(DType::kU8, {n});
    const TensorShape scales = Dense(kF32, {(n + block - 1) / block});
    attrs.block = block;
    list->Add(Op::kUpdateInt8, name + "_block_" + Text(block), attrs,
              {block == 128 ? half : x, x, codes, moment(1, codes), four, four, scales,
               moment(1, scales)});
  }
}

// Muon of matrices that are higher, wider, of a row, of an element; with odd sides and many.
void AddMatrixUpdates(CaseList* list) {
  const TensorShape four = Dense(kF32, {4});
  for (const Sizes& size : {Sizes{1, 1}, {1, 40}, {33, 1}, {64, 64}, {48, 131}, {131, 48}}) {
    const TensorShape x = Dense(kF32, size), half = Dense(kBF16, size);
    UpdateAttrs attrs{.rule = OptimizerRule::kMuon,
                      .beta1 = 0.95f,
                      .epsilon = 1e-7f,
                      .weight_decay = 0.1f,
                      .lr_scale = 0.3f,
                      .step_scale = 1.7f,
                      .iterations = 5};
    const std::string name = Text(size[0]) + "x" + Text(size[1]);
    list->Add(Op::kUpdateMatrix, name, attrs, {x, x, x, kAbsent, four, four});
    list->Add(Op::kUpdateMatrix, name + "_bf16", attrs, {half, x, half, kAbsent, four, four});
    for (const MatmulPrecision precision : {MatmulPrecision::kTF32, MatmulPrecision::kBF16}) {
      attrs.precision = precision;
      list->Add(Op::kUpdateMatrix, name + Suffix(precision), attrs, {x, x, x, kAbsent, four, four});
    }
  }
}

// Of a matrix, or of a vector where it has one row and `vector` says so.
void AddFactoredUpdate(const std::string& name, const UpdateAttrs& attrs, const Sizes& size,
                       bool vector, DType grad, DType moment, CaseList* list) {
  const TensorShape x = Dense(kF32, size), four = Dense(kF32, {4});
  const bool came = attrs.rule == OptimizerRule::kCame, averages = came || attrs.beta1 > 0;
  const TensorShape rows = vector ? kAbsent : Dense(kF32, {size[0]});
  const TensorShape columns = vector ? kAbsent : Dense(kF32, {size[1]});
  list->Add(Op::kUpdateFactored, name, attrs,
            {Dense(grad, size), x, averages ? Dense(moment, size) : kAbsent, vector ? x : kAbsent,
             rows, columns, came ? rows : kAbsent, came ? columns : kAbsent, four, four});
}

// Matrices that are higher, wider, of a row, of an element, of several blocks of rows; vectors.
void AddFactoredUpdates(const OptimizerRow& rule, CaseList* list) {
  const bool came = rule.rule == OptimizerRule::kCame;
  const UpdateAttrs plain{.rule = rule.rule,
                          .beta1 = came ? 0.9f : 0.0f,
                          .beta2 = came ? 0.95f : 0.0f,
                          .epsilon = 1e-30f,
                          .weight_decay = 0.1f,
                          .lr_scale = 0.3f,
                          .clip_threshold = 1,
                          .least_scale = came ? 0.0f : 1e-3f,
                          .beta3 = came ? 0.9f : 0.0f,
                          .error_epsilon = came ? 1e-16f : 0.0f};
  UpdateAttrs other = plain;  // with a first moment, nothing clipped, no scale of the tensor
  other.beta1 = 0.8f;
  other.clip_threshold = other.least_scale = other.weight_decay = 0;
  for (const Sizes& size :
       {Sizes{1, 1}, {1, 40}, {1, 5000}, {33, 1}, {48, 131}, {131, 48}, {300, 70}}) {
    for (const bool vector : {false, true}) {
      if (vector && size[0] > 1) continue;
      const std::string name = std::string(rule.name) + "_" + Text(size[0]) + "x" + Text(size[1]) +
                               (vector ? "_vector" : "");
      AddFactoredUpdate(name, plain, size, vector, kF32, kF32, list);
      AddFactoredUpdate(name + "_grad_bf16", plain, size, vector, kBF16, kF32, list);
      AddFactoredUpdate(name + "_other", other, size, vector, kF32, kF32, list);
      AddFactoredUpdate(name + "_bf16_moment", other, size, vector, kF32, kBF16, list);
    }
  }
}

}  // namespace

void AddUpdates(CaseList* list) {
  for (int64_t n : {1, 15, 70001}) {
    for (const OptimizerRow& rule : kOptimizerRows) {
      if (!rule.whole_matrix && !rule.factored) AddUpdatesBy(rule, n, list);
    }
  }
  AddMatrixUpdates(list);
  for (const OptimizerRow& rule : kOptimizerRows) {
    if (rule.factored) AddFactoredUpdates(rule, list);
  }
}

}  // namespace terrace::kernels::conformance
