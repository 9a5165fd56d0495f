// SPDX-License-Identifier: Apache-2.0
#include "proto/program/announced_weights.h"

#include <bit>
#include <utility>

#include "proto/program/moments.h"
#include "proto/program/op_codec.h"
#include "proto/program/state_layout.h"

namespace terrace {

CodeFormat CodesOf(const v1::Initializer& initializer) {
  const CodeFormat codes = {.row = DecodeBlockFormat(initializer.blocks()),
                            .block = initializer.block()};
  const bool known = codes.row != nullptr && codes.block >= kernels::kLeastBlock &&
                     codes.block <= kernels::kInt8Block &&
                     std::has_single_bit(static_cast<uint64_t>(codes.block));
  if (!known || initializer.shape_size() != 2 || initializer.shape(1) % codes.block != 0) return {};
  return codes;
}

std::vector<AnnouncedWeight> AnnouncedWeights(const v1::Program& program) {
  std::vector<AnnouncedWeight> weights;
  for (const v1::Initializer& initializer : program.initializers()) {
    const std::vector<int64_t> shape(initializer.shape().begin(), initializer.shape().end());
    const CodeFormat codes = CodesOf(initializer);
    AnnouncedWeight weight = {
        .name = initializer.tensor(), .shape = shape, .initializer = &initializer};
    if (codes.row == nullptr) {
      if (initializer.weights() != v1::DTYPE_UNSPECIFIED)
        weight.dtype = static_cast<kernels::DType>(initializer.weights());
      weights.push_back(std::move(weight));
      continue;
    }
    weight.part = AnnouncedWeight::Part::kCodes;
    weight.dtype = kernels::DType::kU8;
    weight.shape = ScalesShape(shape, codes.row->packed);
    weights.push_back(std::move(weight));
    weights.push_back({.name = CodeScalesName(initializer.tensor()),
                       .part = AnnouncedWeight::Part::kScales,
                       .shape = ScalesShape(shape, codes.block),
                       .initializer = &initializer});
  }
  return weights;
}

std::map<std::string, AnnouncedWeight> AnnouncedByName(const v1::Program& program) {
  std::map<std::string, AnnouncedWeight> by_name;
  for (AnnouncedWeight& weight : AnnouncedWeights(program)) {
    std::string name = weight.name;
    by_name.emplace(std::move(name), std::move(weight));
  }
  return by_name;
}

TensorRules::TensorRules(const v1::Program& program)
    : job_(&kernels::RowOf(DecodeRule(program.rules().optimizer()))),
      averages_(program.rules().beta1() > 0) {
  for (const v1::Initializer& initializer : program.initializers()) {
    if (initializer.optimizer() != v1::OPTIMIZER_RULE_UNSPECIFIED)
      others_[initializer.tensor()] = &kernels::RowOf(DecodeRule(initializer.optimizer()));
  }
}

const kernels::OptimizerRow& TensorRules::Of(const std::string& tensor) const {
  const auto other = others_.find(tensor);
  return other == others_.end() ? *job_ : *other->second;
}

std::vector<v1::StateKind> TensorRules::Moments(const std::string& tensor, bool is_matrix) const {
  return MomentKinds(Of(tensor), is_matrix, averages_);
}

}  // namespace terrace
