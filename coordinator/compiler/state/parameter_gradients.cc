// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/state/parameter_gradients.h"

#include "absl/strings/str_cat.h"

namespace terrace::compiler {

Slice ParameterGradients::Of(Slice weight, Builder* builder, bool* first) {
  Graph& graph = builder->graph();
  const int index = graph.values[weight.value].parameter;
  const auto [it, is_new] = values_.try_emplace(index, kNone);
  if (is_new) {
    const Parameter& parameter = parameters_.all()[index];
    Value value = {.name = absl::StrCat("d.weights.", parameter.name()),
                   .cls = v1::GRADIENT,
                   .dtype = parameter.gradient,
                   .shape = parameter.shape,
                   .sequence = builder->sequence()};
    if (by_unit_) {
      value.inside = UnitValue(parameter.unit, builder);
      value.inside_offset = parameter.offset;
    }
    it->second = graph.Add(std::move(value));
  }
  *first = written_.insert({index, weight.offset}).second;
  weight.value = it->second;
  weight.shape.dtype = parameters_.all()[index].gradient;  // whatever the weights have
  return weight;
}

// What lies between the parameters is reduced with them, so it must hold something.
int ParameterGradients::UnitValue(int index, Builder* builder) {
  const auto [it, is_new] = units_.try_emplace(index, kNone);
  if (!is_new) return it->second;
  const Unit& unit = parameters_.units()[index];
  it->second = builder->graph().Add({.name = absl::StrCat(scope_, "grads.", unit.name),
                                     .cls = v1::GRADIENT,
                                     .dtype = unit.gradient,
                                     .shape = {unit.elements},
                                     .sequence = builder->sequence()});
  const Slice all = builder->graph().Whole(it->second);
  int64_t end = 0;
  const auto fill_to = [&](int64_t next) {
    if (next == end) return;
    builder->Compute(kernels::Op::kFill, kernels::FillAttrs{}, {Range(all, end, next - end)},
                     absl::StrCat("padding of grads.", unit.name));
  };
  for (int i : unit.parameters) {
    fill_to(parameters_.all()[i].offset);
    end = parameters_.all()[i].offset + parameters_.all()[i].elements();
  }
  fill_to(unit.elements);
  return it->second;
}

}  // namespace terrace::compiler
