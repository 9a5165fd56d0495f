// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/parameters.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace terrace::compiler {
namespace {

// Tensors that share the input of their product, in the order in which they are stored.
std::vector<TensorRole> StoredWith(TensorRole role) {
  switch (role) {
    case TensorRole::kQ:
      return {TensorRole::kK, TensorRole::kV};
    case TensorRole::kQBias:
      return {TensorRole::kKBias, TensorRole::kVBias};
    case TensorRole::kMlpGate:
      return {TensorRole::kMlpUp};
    case TensorRole::kMlpGateBias:
      return {TensorRole::kMlpUpBias};
    default:
      return {};
  }
}

Dims StackedShape(const std::vector<const Tensor*>& tensors) {
  Dims shape = tensors[0]->shape;
  for (size_t i = 1; i < tensors.size(); ++i) shape[0] += tensors[i]->shape[0];
  return shape;
}

// Every parameter starts on a cache line.
constexpr int64_t kAlignElements = 64 / sizeof(float);

std::string UnitName(const Parameter& parameter) {
  if (parameter.layer != kNone) return absl::StrCat("layer", parameter.layer);
  switch (parameter.tensors[0]->role) {
    case TensorRole::kTokenEmbedding:
    case TensorRole::kPositionEmbedding:
      return "embedding";
    default:
      return "head";
  }
}

}  // namespace

Parameters::Parameters(const Model& model, bool with_optimizer, Graph* graph) {
  Group(model);
  Place(&Parameter::weight, "weights", v1::PARAMETER, graph);
  if (!with_optimizer) return;
  Place(&Parameter::adam_m, "adam_m", v1::OPTIMIZER, graph);
  Place(&Parameter::adam_v, "adam_v", v1::OPTIMIZER, graph);
}

void Parameters::Group(const Model& model) {
  std::map<const Tensor*, bool> taken;
  for (const Tensor& tensor : model.tensors) {
    if (taken[&tensor]) continue;
    Parameter parameter = {.tensors = {&tensor}, .layer = static_cast<int>(tensor.layer)};
    for (TensorRole role : StoredWith(tensor.role)) {
      const Tensor* next = model.Find(role, tensor.layer);
      if (next == nullptr) continue;
      parameter.tensors.push_back(next);
      taken[next] = true;
    }
    by_role_[{tensor.role, parameter.layer}] = all_.size();
    all_.push_back(std::move(parameter));
  }
}

void Parameters::Place(int Parameter::*kind, const char* name, v1::BufferClass cls, Graph* graph) {
  std::map<std::string, int> units;
  for (Parameter& parameter : all_) {
    const std::string unit = UnitName(parameter);
    auto [it, is_new] = units.try_emplace(unit, kNone);
    if (is_new) {
      it->second = graph->Add({.name = absl::StrCat(name, ".", unit),
                               .cls = cls,
                               .shape = {0},
                               .lifetime = v1::PERSISTENT});
    }
    int64_t& used = graph->values[it->second].shape[0];
    used = (used + kAlignElements - 1) / kAlignElements * kAlignElements;
    Value value = {.name = absl::StrCat(name, ".", parameter.tensors[0]->name),
                   .cls = cls,
                   .shape = StackedShape(parameter.tensors),
                   .lifetime = v1::PERSISTENT,
                   .inside = it->second,
                   .inside_offset = used};
    used += value.elements();
    parameter.*kind = graph->Add(std::move(value));
  }
}

Slice Parameters::Weight(const Graph& graph, TensorRole role, int layer) const {
  const auto it = by_role_.find({role, layer});
  return it == by_role_.end() ? Slice{} : graph.Whole(all_[it->second].weight);
}

}  // namespace terrace::compiler
