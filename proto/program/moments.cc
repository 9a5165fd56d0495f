// SPDX-License-Identifier: Apache-2.0
#include "proto/program/moments.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace terrace {

bool IsFactor(v1::StateKind kind) {
  return std::find(kFactorKinds.begin(), kFactorKinds.end(), kind) != kFactorKinds.end();
}

std::vector<v1::StateKind> MomentKinds(const kernels::OptimizerRow& rule, bool is_matrix,
                                       bool averages) {
  std::vector<v1::StateKind> kinds;
  if (!rule.factored) {
    if (rule.moments > 0) kinds.push_back(v1::FIRST_MOMENT);
    if (rule.moments > 1) kinds.push_back(v1::SECOND_MOMENT);
    return kinds;
  }
  const bool errors = rule.rule == kernels::OptimizerRule::kCame;
  if (errors || averages) kinds.push_back(v1::FIRST_MOMENT);
  if (!is_matrix) {
    kinds.push_back(v1::SECOND_MOMENT);
    return kinds;
  }
  kinds.insert(kinds.end(), {v1::ROW_MOMENT, v1::COLUMN_MOMENT});
  if (errors) kinds.insert(kinds.end(), {v1::ROW_ERROR, v1::COLUMN_ERROR});
  return kinds;
}

std::vector<int64_t> MomentShape(v1::StateKind kind, const std::vector<int64_t>& shape) {
  if (!IsFactor(kind) || shape.size() < 2) return shape;
  if (kind == v1::ROW_MOMENT || kind == v1::ROW_ERROR) return {shape[0]};
  return {std::accumulate(shape.begin() + 1, shape.end(), int64_t{1}, std::multiplies<>())};
}

}  // namespace terrace
