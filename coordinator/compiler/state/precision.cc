// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/state/precision.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "coordinator/layout/precision.h"
#include "coordinator/model/lora.h"

namespace terrace::compiler {
namespace {

using kernels::DType;
using kernels::MatmulPrecision;

struct Row {
  std::string_view name;
  MatmulPrecision product;
  MatmulPrecision scores;
  DType activation;
  DType rounded;
};

constexpr Row kRows[] = {
    {"fp32", MatmulPrecision::kF32, MatmulPrecision::kF32, DType::kF32, DType::kF32},
    {"tf32", MatmulPrecision::kTF32, MatmulPrecision::kF32, DType::kF32, DType::kF32},
    {"bf16", MatmulPrecision::kBF16, MatmulPrecision::kBF16, DType::kBF16, DType::kBF16},
    {"fp16", MatmulPrecision::kF16, MatmulPrecision::kF16, DType::kF16, DType::kF16},
    {"fp8", MatmulPrecision::kFP8, MatmulPrecision::kBF16, DType::kBF16, DType::kF32},
};

absl::StatusOr<const Row*> RowOf(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) return &row;
  }
  return absl::InvalidArgumentError(absl::StrCat("train.precision: got '", Absl(name),
                                                 "', must be fp32, tf32, bf16, fp16 or fp8"));
}

DType RoundedTo(MatmulPrecision precision) {
  for (const Row& row : kRows) {
    if (row.product == precision) return row.rounded;
  }
  return DType::kF32;
}

bool IsOfAttention(TensorRole role) {
  return role == TensorRole::kQkv || role == TensorRole::kQ || role == TensorRole::kK ||
         role == TensorRole::kV || role == TensorRole::kAttentionOut;
}

}  // namespace

MatmulPrecision Precisions::Of(TensorRole role, int layer) const {
  if (role == TensorRole::kLmHead || role == TensorRole::kTokenEmbedding) return head;
  const Layer& of = layers.empty() ? each : layers[layer];
  return IsOfAttention(AdaptedRole(role)) ? of.attention : of.mlp;
}

DType Precisions::ReadAs(TensorRole role, int layer, bool tied) const {
  const bool is_table =
      role == TensorRole::kTokenEmbedding || role == TensorRole::kPositionEmbedding;
  DType type = is_table ? table : RoundedTo(Of(role, layer));
  if (tied && role == TensorRole::kTokenEmbedding && RoundedTo(head) != table) type = DType::kF32;
  return type == rounded ? rounded : DType::kF32;
}

absl::StatusOr<Precisions> PrecisionsOf(const v1::Layout& layout) {
  ASSIGN_OR_RETURN(const Row* row, RowOf(layout.precision()));
  ASSIGN_OR_RETURN(const Row* head, RowOf(HeadPrecision(layout)));
  Precisions precisions = {
      .activation = row->activation,
      .scores = row->scores,
      .head = head->product,
      .each = {row->product, row->product},
      .rounded = row->rounded,
      .table = layout.embedding_precision() == "fp32" ? DType::kF32 : row->rounded};
  for (const v1::LayerPrecision& layer : layout.layer_precisions()) {
    ASSIGN_OR_RETURN(const Row* attention, RowOf(layer.attention()));
    ASSIGN_OR_RETURN(const Row* mlp, RowOf(layer.mlp()));
    precisions.layers.push_back({attention->product, mlp->product});
  }
  return precisions;
}

}  // namespace terrace::compiler
